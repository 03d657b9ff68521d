// Package systest holds tests of whole processes: nodes and services that are killed, stopped and told to end in the
// middle of runs. It has no code of its own.
//
// The test binary runs itself again as a node or as a service, so that what dies is a real process. What must hold is
// checked from outside: by a ledger of executions that services write, and by the doctor.
package systest
