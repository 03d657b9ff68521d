package plane

// LockStepsOfCanary locks the steps of a run. Claims, re-runs and cancels take the same locks: while they are held,
// nothing becomes ready or claimed.
const LockStepsOfCanary = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR NO KEY UPDATE`
