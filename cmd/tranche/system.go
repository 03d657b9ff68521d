package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

type doctorCommand struct {
	Database      string `help:"Check this database directly instead of asking a server." placeholder:"URL"`
	ThroughPooler bool   `env:"TRANCHE_THROUGH_POOLER" help:"--database is a pooler by transaction that does not make itself known as one."`
}

// Run checks the invariants.
func (d *doctorCommand) Run(ctx context.Context, term *console) error {
	report, err := d.examine(ctx, term)
	if err != nil {
		return err
	}
	if term.json {
		err = term.sent()
	} else {
		err = term.printf("%s", reportText(&report))
	}
	if err == nil && report.Found > 0 {
		err = &exitError{exitOther}
	}
	return err
}

func (d *doctorCommand) examine(ctx context.Context, term *console) (client.Report, error) {
	if d.Database == "" {
		cl, err := term.client()
		if err != nil {
			return client.Report{}, err
		}
		return cl.Doctor(ctx, term.keep())
	}
	if _, err := pgxpool.ParseConfig(d.Database); err != nil {
		return client.Report{}, &usageError{"--database: " + err.Error()}
	}
	store, release, err := database.Open(ctx, d.Database, database.PoolConfig{ThroughPooler: d.ThroughPooler})
	if err != nil {
		return client.Report{}, err
	}
	defer release()
	found, err := doctor.New(store).Doctor(ctx)
	if err != nil {
		return client.Report{}, err
	}
	return asSent[client.Report](term, found)
}

// asSent makes the document that a server would send of what this process found itself, and keeps it as one.
func asSent[T any](term *console, found any) (document T, err error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(found); err != nil {
		return document, fmt.Errorf("write what was found: %w", err)
	}
	term.answer = bytes.TrimSpace(text.Bytes())
	return document, json.Unmarshal(term.answer, &document)
}

// violationText says where an invariant does not hold.
func violationText(v *client.Violation) string {
	place := ""
	if v.Run != nil {
		place += " run " + *v.Run
	}
	if v.Step != nil {
		place += fmt.Sprintf(" step %d", *v.Step)
	}
	if v.Block != nil {
		place += fmt.Sprintf(" block %d", *v.Block)
	}
	line := fmt.Sprintf("%s%s: %s (%d)", v.Invariant, place, v.What, v.Count)
	if len(v.Ordinals) > 0 {
		line += fmt.Sprintf(" items %v", v.Ordinals)
		if v.Count > int64(len(v.Ordinals)) {
			line += "…"
		}
	}
	return line
}

func reportText(r *client.Report) string {
	text := fmt.Sprintf("looked at %s runs, %s items, %s slices, %s parts in %s\n", count(int64(r.Runs)), count(r.Items),
		count(r.Slices), count(r.Parts), span(seconds(r.Seconds)))
	if r.Found == 0 {
		return text + "I1, I2, I3, I6, I7, I10, O1 and C1 hold\n"
	}
	for _, v := range r.Violations {
		text += inert(violationText(&v)) + "\n"
	}
	return text + fmt.Sprintf("%s violations\n", count(int64(r.Found)))
}
