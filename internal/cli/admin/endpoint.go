package admin

// Endpoints are the commands about endpoints.
type Endpoints struct {
	List    endpointsList    `cmd:"" default:"1" help:"List endpoints: backlog, rate, time for an item, errors, listeners."`
	Show    endpointsShow    `cmd:"" help:"One endpoint, with each instance that listens on it."`
	Explain endpointsExplain `cmd:"" help:"Why an endpoint does not move."`
	Set     endpointsSet     `cmd:"" help:"Change an endpoint's concurrency, budget or rate while its services run."`
}

// DeadLetters are the commands about requests that no service could deal with.
type DeadLetters struct {
	List    dlqList    `cmd:"" help:"List dead letters, newest first."`
	Show    dlqShow    `cmd:"" help:"A dead letter: its cause, its headers and its body."`
	Requeue dlqRequeue `cmd:"" help:"Send dead letters to their endpoints again."`
	Drop    dlqDrop    `cmd:"" help:"Give dead letters up; their bodies are deleted."`
}

// Quarantine are the commands about messages that could not be taken.
type Quarantine struct {
	List quarantineList `cmd:"" help:"List messages that could not be taken, newest first."`
	Show quarantineShow `cmd:"" help:"A message that could not be taken: why, its headers and its body."`
}
