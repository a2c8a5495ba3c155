
		WITH candidate_task AS (
			SELECT id 
			FROM scheduled_tasks
			WHERE status = 'queued' AND run_at <= NOW()
			ORDER BY run_at ASC, id ASC
			LIMIT 10
			FOR UPDATE SKIP LOCKED
		)
		UPDATE scheduled_tasks
		SET status = 'processing', updated_at = NOW()
		WHERE id = (
			SELECT id FROM candidate_task
			WHERE pg_try_advisory_xact_lock($1, (id % 2147483647)::integer)
			LIMIT 1
		)
		RETURNING id, task_type, payload, retry_count;
