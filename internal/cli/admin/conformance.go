package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/tools/conformance"
)

type conformanceCommand struct {
	Endpoint string   `help:"The endpoint to check." placeholder:"NAME"`
	NATS     string   `name:"nats" help:"The service already runs, on this server; NATS_NKEY, NATS_CREDS or NATS_USER is the caller's identity." placeholder:"URL"`
	Items    string   `help:"JSON lines of payloads that the endpoint understands; default: examples of the schema that it announces." placeholder:"FILE"`
	Level    string   `enum:"must,should,may" default:"should" help:"What must pass: must (others' work depends on it), should (users notice), or may." placeholder:"LEVEL"`
	Record   string   `help:"Record the messages of suite and service, as JSON lines, in this new file." placeholder:"FILE"`
	Only     []string `help:"Run this check only; repeatable." placeholder:"CHECK"`
	List     bool     `help:"List the checks and exit."`
	Command  []string `arg:"" optional:"" passthrough:"" help:"Command that starts the service, after --; NATS_URL is set for it."`
}

func (c *conformanceCommand) Run(ctx context.Context, term *cli.Console) error {
	if c.List {
		return listChecks(term)
	}
	if c.Endpoint == "" {
		return cli.Usage("--endpoint is missing; see: tranche conformance --help")
	}
	items, err := readPayloads(c.Items)
	if err != nil {
		return err
	}
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	config := conformance.Config{Endpoint: c.Endpoint, URL: c.NATS, Command: c.Command, Items: items, Only: c.Only}
	if !term.JSON {
		config.Each = func(r conformance.Result) error { return term.Printf("%s", resultText(r)) }
	}
	closing := func() error { return nil }
	if c.Record != "" {
		file, err := os.OpenFile(filepath.Clean(c.Record), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		config.Record, closing = file, file.Close
	}
	report, err := conformance.Run(ctx, config)
	if err := errors.Join(err, closing()); err != nil {
		return err
	}
	level := conformance.Level(c.Level)
	if term.JSON {
		err = term.Document(report)
	} else {
		err = term.Printf("%s", summaryText(report, level))
	}
	return cli.FailIf(report.Wanting(level) > 0, cli.ExitOther, err)
}

func listChecks(term *cli.Console) error {
	if term.JSON {
		return term.Document(conformance.Checks())
	}
	for _, c := range conformance.Checks() {
		if err := term.Printf("%-6s %-17s %s (%s)\n", c.Level, c.Name, c.About, c.Section); err != nil {
			return err
		}
	}
	return nil
}

func readPayloads(file string) ([]json.RawMessage, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, fmt.Errorf("read --items: %w", err)
	}
	var items []json.RawMessage
	for n, line := range bytes.Split(data, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return nil, fmt.Errorf("read --items: line %d of %s is not JSON", n+1, file)
		}
		items = append(items, line)
	}
	return items, nil
}

func resultText(r conformance.Result) string {
	text := fmt.Sprintf("%-8s %-6s %-17s %s\n", r.Outcome, r.Level, r.Check, r.About)
	if r.Outcome == conformance.Failed {
		text += fmt.Sprintf("         expected: %s\n         got:      %s\n         users:    %s\n"+
			"         see:      docs/protocol.md, %s\n",
			cli.EscapeControl(r.Expected), cli.EscapeControl(r.Got), r.Notice, r.Section)
	}
	return text
}

func summaryText(report *conformance.Report, level conformance.Level) string {
	text := fmt.Sprintf("\n%d passed, %d failed, %d left out\n", report.Count(conformance.Passed),
		report.Count(conformance.Failed), report.Count(conformance.LeftOut))
	if failed := report.Count(conformance.Failed); failed > report.Wanting(level) {
		text += fmt.Sprintf("%d of the failed do not count at --level %s\n", failed-report.Wanting(level), level)
	}
	text += leftOut(report) + itemsText(report)
	if report.Output != "" {
		text += "\nThe service wrote, at the end:\n" + cli.InertText(report.Output) + "\n"
	}
	return text
}

func itemsText(report *conformance.Report) string {
	switch {
	case len(report.Items) > 0:
		text := "Items sent, made from the announced schema (--items FILE replaces them):\n"
		return text + cli.Each(report.Items, func(item *json.RawMessage) string {
			return cli.EscapeControl(string(*item)) +
				"\n"
		})
	case report.NoItems:
		return "Each item sent was {}: the endpoint announces no schema, or no example fits it. Give payloads with --items " +
			"FILE (JSON lines), or announce a schema (docs/protocol.md, Discovery).\n"
	}
	return ""
}

func leftOut(report *conformance.Report) string {
	names := map[string][]string{}
	var reasons []string
	for _, r := range report.Results {
		if r.Outcome != conformance.LeftOut {
			continue
		}
		if names[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		names[r.Reason] = append(names[r.Reason], r.Check)
	}
	var text strings.Builder
	for _, reason := range reasons {
		fmt.Fprintf(&text, "Left out were %s: %s.\n", strings.Join(names[reason], ", "), reason)
	}
	return text.String()
}
