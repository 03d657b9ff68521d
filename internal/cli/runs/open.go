package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type runOpen struct {
	planFlags
	IdempotencyKey string        `help:"Opening again with the same key gives the run that is there." placeholder:"K"`
	OnDuplicate    string        `enum:"error,skip,allow" default:"error" help:"A key that the run has already: error, skip or allow." placeholder:"WHAT"`
	SealWithin     time.Duration `default:"24h" help:"The run is overdue when it is not sealed by then (${default})." placeholder:"TIME"`
	OnOverdue      string        `enum:"report,seal,cancel" default:"report" help:"What then, beside reporting it: report (nothing, for 7 days in which nobody does anything with it), seal or cancel." placeholder:"WHAT"`
	runSettings
}

func (r *runOpen) Validate() error {
	if r.SealWithin < time.Second {
		return fmt.Errorf("--seal-within is %s; it must be 1s or more", r.SealWithin)
	}
	return r.start().Validate()
}

// start is the same run as one that is started with its items.
func (r *runOpen) start() *runStart {
	return &runStart{planFlags: r.planFlags, IdempotencyKey: r.IdempotencyKey, OnDuplicate: r.OnDuplicate,
		runSettings: r.runSettings, itemFlags: itemFlags{later: true}}
}

func (r *runOpen) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	start := r.start()
	plan, settings, err := start.settings()
	if err != nil {
		return err
	}
	settings.Source = "added over time"
	open := client.OpenSettings{SealWithin: r.SealWithin.String(), OnOverdue: r.OnOverdue}
	if err := alike(&settings, &open); err != nil {
		return err
	}
	opened, err := cl.OpenRun(ctx, open, term.Keep())
	term.Warn(opened.Warnings)
	return cli.Say(term, func(opened *client.Opened) string {
		if opened.Existing {
			return fmt.Sprintf("run %s is there already, by its idempotency key", opened.Run)
		}
		return fmt.Sprintf("run %[1]s is open until %[2]s\nadd items with: tranche run add %[1]s FILE\n"+
			"then: tranche run seal %[1]s", opened.Run, cli.Moment(opened.SealBy))
	})(opened, start.Explain(&plan, err))
}

type runAdd struct {
	runArg
	File  string `arg:"" optional:"" default:"-" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Items string `help:"The same, as run start has it." placeholder:"FILE"`
	cli.KeyFlags
	IdempotencyKey string `help:"Adding the same items again with the same key changes nothing." placeholder:"K"`
	cli.RowFlags
	Contract string `enum:",refuse,warn,off" default:"" help:"When no item has a field that the service of a step requires: refuse, warn or off." placeholder:"WHAT"`
}

func (r *runAdd) Validate() error {
	if r.Items == "" {
		return nil
	}
	if r.File != "-" {
		return errors.New("the items are named twice: after the run, and by --items")
	}
	r.File = r.Items
	return nil
}

func (r *runAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	params := client.AddItemsParams{IdempotencyKey: r.IdempotencyKey, Key: r.Key, Format: r.Format,
		Encoding: r.Encoding, NoHeader: r.NoHeader, Delimiter: r.Delimiter,
		Columns: r.Columns, Rename: r.Rename, Types: r.Types, Contract: r.Contract}
	added, err := cli.Upload(term, "file", r.File, func(items io.Reader) (client.AddedItems, error) {
		return cl.Add(ctx, r.Ref, params, items, term.Keep())
	})
	if !term.JSON {
		term.Warn(added.Warnings)
	}
	return cli.Say(term, func(added *client.AddedItems) string {
		text, before := "", ""
		if added.Existing {
			text, before = "nothing changed: ", " before, by their idempotency key"
		}
		text += cli.Plural(added.Items, "item") + " added to run " + added.Run + before
		if added.Skipped > 0 {
			text += fmt.Sprintf(" (%s skipped)", cli.Plural(added.Skipped, "duplicate"))
		}
		return text + "; it has " + cli.Count(added.Total) + " now"
	})(added, err)
}

type runSeal struct {
	runArg
	Expect *int64 `help:"Seal only if the run has so many items." placeholder:"N"`
	Reason string `help:"Why, for the audit log." placeholder:"TEXT"`
}

func (r *runSeal) Validate() error {
	if r.Expect != nil && *r.Expect < 0 {
		return fmt.Errorf("--expect is %d; it must not be negative", *r.Expect)
	}
	return nil
}

func (r *runSeal) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(sealed *client.SealedRun) string {
		items := cli.Plural(sealed.Items, "item")
		switch {
		case sealed.Already:
			return "run " + sealed.Run + " was sealed before, with " + items
		case sealed.Completed:
			return "run " + sealed.Run + " sealed with " + items + ", and completed"
		}
		return fmt.Sprintf("run %s sealed with %s; follow it with: tranche run watch %s", sealed.Run, items, sealed.Run)
	})(cl.SealRun(ctx, r.Ref, client.SealSettings{Expect: r.Expect, Reason: r.Reason}, term.Keep()))
}

// itemFlags say where the items of a run come from: one of these.
type itemFlags struct {
	Items   string `aliases:"file" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Parquet string `help:"A Parquet file." placeholder:"FILE"`
	SQL     string `name:"sql" help:"A query whose rows are the items; with --source." placeholder:"QUERY"`
	Source  string `help:"Where to ask the query: a source of serve --connections." placeholder:"NAME"`
	Stream  string `help:"A JetStream stream whose messages are the items, up to the last that it has now." placeholder:"NAME"`
	Subject string `help:"Of the stream, only messages of this subject; may have wildcards." placeholder:"SUBJECT"`
	FromSeq uint64 `help:"Of the stream, only messages from this sequence on." placeholder:"SEQ"`

	From    string   `help:"Carry an earlier run on, with items of it, by its plan and parameters unless others are given." placeholder:"RUN"`
	State   []string `enum:"failed,missing,cancelled" help:"With --from, which items: failed, missing or cancelled; may stand more than once. Default: all these." placeholder:"STATE"`
	Correct string   `help:"With --from, a file with other data for some of the items; - is standard input." placeholder:"FILE"`

	later bool // there are none yet
}

func (f *itemFlags) validate(format string) error {
	var given []string
	for _, from := range [][2]string{{"--from", f.From}, {"--items (or --file)", f.Items}, {"--parquet", f.Parquet},
		{"--sql", f.SQL}, {"--stream", f.Stream}} {
		if from[1] != "" {
			given = append(given, from[0])
		}
	}
	switch {
	case f.later:
		return nil
	case len(given) == 0:
		return errors.New("say where the items come from, by one of --items FILE, --parquet FILE, --sql QUERY, " +
			"--stream NAME and --from RUN")
	case len(given) > 1:
		return fmt.Errorf("%s each say where the items come from; give one of them (other data for items of an earlier "+
			"run is --from RUN --correct FILE)", strings.Join(given, " and "))
	case f.From == "" && (len(f.State) > 0 || f.Correct != ""):
		return errors.New("--state and --correct are about items of an earlier run; give --from RUN too")
	case (f.SQL == "") != (f.Source == ""):
		return errors.New("--sql and --source go together: a query, and the source to ask")
	case f.Stream == "" && (f.Subject != "" || f.FromSeq != 0):
		return errors.New("--subject and --from-seq say which messages of a stream; give --stream too")
	case f.Items+f.Correct == "" && format != "":
		return errors.New("--format goes with --items and --correct only")
	}
	return nil
}

// file is the file to send, if there is one, and the flag by which it was given.
func (f *itemFlags) file() (flag, name string) {
	switch {
	case f.Parquet != "":
		return "--parquet", f.Parquet
	case f.Correct != "":
		return "--correct", f.Correct
	}
	return "--items", f.Items
}

// fill says in the settings of a run where its items come from.
func (f *itemFlags) fill(s *client.RunSettings) {
	s.SQL, s.SQLSource, s.Stream, s.StreamSubject, s.StreamFrom = f.SQL, f.Source, f.Stream, f.Subject, f.FromSeq
	s.FromRun, s.FromStates = f.From, f.State
	switch _, file := f.file(); {
	case f.From != "": // the server says which run that is
	case f.SQL != "":
		s.Source = "source " + f.Source
	case f.Stream != "":
		s.Source = "stream " + f.Stream
	case file == "-" || file == "":
		s.Source = "standard input"
	default:
		s.Source = filepath.Base(file)
	}
	if f.Parquet != "" {
		s.Format = "parquet"
	}
}
