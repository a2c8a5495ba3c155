CREATE TABLE scheduled_tasks (
    id BIGSERIAL PRIMARY KEY,
    task_type VARCHAR(64) NOT NULL,
    payload JSONB NOT NULL DEFAULT '{}',
    run_at TIMESTAMPTZ NOT NULL,
    status VARCHAR(20) NOT NULL DEFAULT 'queued',
    max_retries INT NOT NULL DEFAULT 3,
    retry_count INT NOT NULL DEFAULT 0,
    error_log TEXT,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
);

-- Index specifically tailored for the queue polling query
CREATE INDEX idx_tasks_poll ON scheduled_tasks (run_at, status)
WHERE status = 'queued';

-- Separate index to optimize the cleaning of stuck/orphaned tasks
CREATE INDEX idx_tasks_stuck ON scheduled_tasks (status, updated_at)
WHERE status = 'processing';
