package admin

import (
	"context"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/migrations"
)

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
	apply := func() ([]string, error) { return migrations.Up(ctx, m.Database, waits) }
	verb := "applied"
	if m.DryRun {
		apply = func() ([]string, error) { return migrations.Pending(ctx, m.Database) }
		verb = "would apply"
	}
	files, err := apply()
	if err != nil {
		return err
	}
	if !m.DryRun {
		for _, role := range m.Grant {
			if err := migrations.Grant(ctx, m.Database, role); err != nil {
				return err
			}
		}
	}
	if term.JSON {
		return term.Document(map[string]any{"files": noNil(files), "dry_run": m.DryRun, "granted": noNil(m.Grant)})
	}
	return term.Printf("%s", m.text(files, verb))
}

func (m *Migrate) text(files []string, verb string) string {
	var said strings.Builder
	if len(files) == 0 {
		said.WriteString("the database is up to date\n")
	}
	for _, file := range files {
		said.WriteString(verb + " " + file + "\n")
	}
	for _, role := range m.Grant {
		if m.DryRun {
			said.WriteString("would let " + cli.Inert(role) + " serve\n")
		} else {
			said.WriteString(cli.Inert(role) + " may serve, and change neither the schema nor the audit log\n")
		}
	}
	return said.String()
}

func noNil(all []string) []string { return append([]string{}, all...) }
