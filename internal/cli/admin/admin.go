// Package admin has the commands that are not about runs: plans, schedules, alerts, collectors, trackers, endpoints,
// system administration, and the program itself. Each resource has its file.
package admin

import (
	"errors"

	"github.com/tranchehq/tranche/workqueue"
)

// Commands are all of them.
type Commands struct {
	Plan        planCommands       `cmd:"" help:"Saved plans, in versions: what runs do, by name."`
	Simulate    simulateCommand    `cmd:"" help:"Simulate a run of a plan: when each step would begin and end, and what bounds it."`
	Schedule    scheduleCommands   `cmd:"" help:"Schedules: runs started by the clock, and their outcomes."`
	Alert       alertCommands      `cmd:"" help:"Alerts: who is notified of conditions."`
	Collector   collectorCommands  `cmd:"" help:"Collectors: operations stored and sent in lists, by key."`
	Endpoints   endpointCommands   `cmd:"" help:"Endpoints: listeners, work and settings."`
	Tracker     trackerCommands    `cmd:"" help:"Tracker batches: when all items of a fan-out are done."`
	DLQ         deadLetterCommands `cmd:"" name:"dlq" help:"Dead letters: requests that no service could handle."`
	Quarantine  quarantineCommands `cmd:"" help:"List and show unreadable messages."`
	Token       tokenCommands      `cmd:"" help:"Tokens: who may use the API, the command line and the dashboard."`
	Namespaces  namespaceCommands  `cmd:"" name:"namespace" help:"Namespaces: who shares the installation, and how much of it."`
	Session     sessionCommands    `cmd:"" help:"Sessions: who is logged in to the dashboard."`
	Act         actCommands        `cmd:"" help:"Acts of administrators that another one must confirm: serve --four-eyes."`
	Erase       eraseCommand       `cmd:"" help:"Erase the data of a person's key."`
	Retention   retentionCommands  `cmd:"" help:"Retention: how long runs, events, the audit log and more are kept."`
	Streams     streamCommands     `cmd:"" help:"Streams: settings and state of the JetStream streams."`
	Nodes       nodesCommand       `cmd:"" help:"Nodes: who leads, and what each holds."`
	Health      healthCommands     `cmd:"" help:"Health: conditions that need a person, and their remedies; exit 3 when one is critical."`
	Audit       auditCommands      `cmd:"" help:"Audit log: who did what and when, before and after."`
	NATS        natsCommands       `cmd:"" name:"nats" help:"Write a NATS server's configuration, or revoke credentials."`
	Migrate     migrateCommand     `cmd:"" help:"Bring a database to this version's schema."`
	Conformance conformanceCommand `cmd:"" help:"Check a service, of any language, against docs/protocol.md."`
	Doctor      doctorCommand      `cmd:"" help:"Check the invariants of a database; exit 1 when one does not hold."`
	Psql        psqlCommand        `cmd:"" help:"Open psql on the private PostgreSQL of tranche serve."`
	demoCommands

	Config     configSample  `cmd:"" help:"Print a sample of a config file, with every setting of serve."`
	Schema     schemaCommand `cmd:"" help:"Print the JSON Schema of a kind of YAML file, for editors."`
	Help       helpCommand   `cmd:"" help:"Explain a command: tranche help run start."`
	Completion completion    `cmd:"" help:"Print a shell completion script."`
	Man        manPages      `cmd:"" hidden:"" help:"Write the man pages."`
}

func chosenOnce(all, some bool, which, either string) error {
	switch {
	case all && some:
		return errors.New(either)
	case !all && !some:
		return errors.New("say which " + which)
	}
	return nil
}

func sizeText(n int64) string {
	if n == 0 {
		return "-"
	}
	return workqueue.Bytes(n).String()
}
