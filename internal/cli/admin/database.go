package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// Doctor checks the invariants of a database.
type Doctor struct {
	Database      string `help:"Check this database directly instead of asking a server." placeholder:"URL"`
	ThroughPooler bool   `env:"TRANCHE_THROUGH_POOLER" help:"--database is a pooler by transaction that does not make itself known as one."`
}

// Run checks the invariants.
func (d *Doctor) Run(ctx context.Context, term *cli.Console) error {
	report, err := d.examine(ctx, term)
	return cli.FailIf(report.Found > 0, cli.ExitOther, cli.Say(term, reportText)(report, err))
}

func (d *Doctor) examine(ctx context.Context, term *cli.Console) (found doctor.Report, err error) {
	if d.Database == "" {
		cl, err := term.Client()
		if err == nil {
			_, err = cl.Doctor(ctx, term.Keep())
		}
		if err == nil {
			err = json.Unmarshal(term.Answer, &found)
		}
		return found, err
	}
	if _, err := pgxpool.ParseConfig(d.Database); err != nil {
		return found, cli.Usage("--database: " + err.Error())
	}
	store, release, err := database.Open(ctx, d.Database, database.PoolConfig{ThroughPooler: d.ThroughPooler})
	if err != nil {
		return found, err
	}
	defer release()
	found, err = doctor.New(store).Doctor(ctx)
	_, err = asSent[client.Report](term, found, err)
	return found, err
}

// asSent makes the document that a server would send of what this process found itself, and keeps it as one.
func asSent[T any](term *cli.Console, found any, err error) (document T, _ error) {
	if err != nil {
		return document, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(found); err != nil {
		return document, fmt.Errorf("write what was found: %w", err)
	}
	term.Answer = bytes.TrimSpace(text.Bytes())
	return document, json.Unmarshal(term.Answer, &document)
}

func reportText(r *doctor.Report) string {
	text := fmt.Sprintf("looked at %s runs, %s items, %s slices, %s parts in %s\n", cli.Count(int64(r.Runs)),
		cli.Count(r.Items), cli.Count(r.Slices), cli.Count(r.Parts), cli.Span(cli.Seconds(r.Seconds)))
	if r.Found == 0 {
		text += "all invariants hold:"
		for _, rule := range doctor.Rules() {
			text += fmt.Sprintf("\n  %-3s  %s", rule.Invariant, rule.Words)
		}
		return text
	}
	for _, v := range r.Violations {
		text += cli.Inert(v.String()) + "\n"
	}
	return text + cli.Count(int64(r.Found)) + " violations"
}

// Migrate brings a database to the schema of this version.
type Migrate struct {
	Database string   `required:"" env:"TRANCHE_DATABASE" help:"The database to bring up to date, as the owner of its schema." placeholder:"URL"`
	DryRun   bool     `help:"Say what would be applied."`
	Grant    []string `help:"Then let this role serve, without a right to change the schema or the audit log. Again after each migration; may be repeated." placeholder:"ROLE"`
}

// Run applies migrations, and grants what serving needs.
func (m *Migrate) Run(ctx context.Context, term *cli.Console) error {
	waits := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "message"}),
		zapcore.AddSync(term.Err), zap.WarnLevel))
	var files []string
	var err error
	if m.DryRun {
		files, err = migrations.Pending(ctx, m.Database)
	} else {
		files, err = migrations.Up(ctx, m.Database, waits)
	}
	for _, role := range m.Grant {
		if err == nil && !m.DryRun {
			err = migrations.Grant(ctx, m.Database, role)
		}
	}
	if err != nil {
		return err
	}
	if term.JSON {
		return term.Document(map[string]any{"files": noNil(files), "dry_run": m.DryRun, "granted": noNil(m.Grant)})
	}
	return term.Printf("%s", m.text(files))
}

func (m *Migrate) text(files []string) string {
	applied, before, after := "applied ", "", " may serve, and change neither the schema nor the audit log\n"
	if m.DryRun {
		applied, before, after = "would apply ", "would let ", " serve\n"
	}
	text := ""
	if len(files) == 0 {
		text = "the database is up to date\n"
	}
	for _, file := range files {
		text += applied + file + "\n"
	}
	for _, role := range m.Grant {
		text += before + cli.Inert(role) + after
	}
	return text
}

func noNil(all []string) []string { return append([]string{}, all...) }
