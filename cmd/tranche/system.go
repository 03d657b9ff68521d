package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/workqueue"
)

type doctorCommand struct {
	Database string `help:"Check this database directly instead of asking a server." placeholder:"URL"`
}

// Run checks the invariants.
func (d *doctorCommand) Run(ctx context.Context, term *console) error {
	report, err := d.examine(ctx, term)
	if err != nil {
		return err
	}
	if term.json {
		err = term.document(report)
	} else {
		err = term.printf("%s", reportText(&report))
	}
	if err == nil && !report.OK() {
		err = &exitError{exitOther}
	}
	return err
}

func (d *doctorCommand) examine(ctx context.Context, term *console) (workqueue.Report, error) {
	if d.Database == "" {
		cl, err := term.client()
		if err != nil {
			return workqueue.Report{}, err
		}
		return cl.Doctor(ctx)
	}
	if _, err := pgxpool.ParseConfig(d.Database); err != nil {
		return workqueue.Report{}, &usageError{"--database: " + err.Error()}
	}
	store, release, err := workqueue.Open(ctx, d.Database, workqueue.PoolConfig{})
	if err != nil {
		return workqueue.Report{}, err
	}
	defer release()
	return store.Doctor(ctx)
}

func reportText(r *workqueue.Report) string {
	text := fmt.Sprintf("looked at %s runs, %s items, %s slices, %s parts in %s\n", count(int64(r.Runs)), count(r.Items),
		count(r.Slices), count(r.Parts), span(seconds(r.Seconds)))
	if r.OK() {
		return text + "I1, I2, I3, I6, I7 and I10 hold\n"
	}
	for _, v := range r.Violations {
		text += inert(v.String()) + "\n"
	}
	return text + fmt.Sprintf("%s violations\n", count(int64(r.Found)))
}

type migrateCommand struct {
	Database string `required:"" env:"TRANCHE_DATABASE" help:"The database to bring up to date." placeholder:"URL"`
	DryRun   bool   `help:"Say what would be applied."`
}

// Run applies migrations.
func (m *migrateCommand) Run(ctx context.Context, term *console) error {
	apply := func() ([]string, error) { return migrations.Up(ctx, m.Database, nil) }
	verb := "applied"
	if m.DryRun {
		apply = func() ([]string, error) { return migrations.Pending(ctx, m.Database) }
		verb = "would apply"
	}
	files, err := apply()
	if err != nil {
		return err
	}
	if term.json {
		if files == nil {
			files = []string{}
		}
		return term.document(map[string]any{"files": files, "dry_run": m.DryRun})
	}
	if len(files) == 0 {
		return term.printf("the database is up to date\n")
	}
	for _, file := range files {
		if err := term.printf("%s %s\n", verb, file); err != nil {
			return err
		}
	}
	return nil
}
