
		UPDATE scheduled_tasks 
		SET status = CASE WHEN retry_count < max_retries THEN 'queued' ELSE 'failed' END,
		    retry_count = retry_count + 1,
		    error_log = $2,
		    run_at = NOW() + (INTERVAL '1 minute' * (retry_count + 1)), -- exponential backoff
		    updated_at = NOW()
		WHERE id = $1
