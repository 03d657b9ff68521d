package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type itemChoice struct {
	Key   []string `json:"keys" xor:"which" sep:"none" help:"This item; repeatable." placeholder:"K"`
	Keys  string   `json:"-" xor:"which" help:"The items of a file with one key per line; - is standard input. For run export, with --dir." placeholder:"FILE"`
	Code  []string `json:"codes" xor:"which" sep:"none" help:"Items that failed with this code; repeatable." placeholder:"C"`
	Group []string `json:"groups" xor:"which" sep:"none" help:"Items that failed with a message of this group of tranche run errors; repeatable." placeholder:"G"`
}

type evidence struct {
	Service     string    `help:"Only outcomes of this service: NAME, NAME@VERSION, or with the instance." placeholder:"NAME@VERSION"`
	Since       time.Time `help:"Only outcomes of requests that ended since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Until       time.Time `help:"Only outcomes of requests that ended before." placeholder:"TIME"`
	Where       string    `help:"Only items whose payload matches this SQL/JSON path: $$.branch == \"12\"." placeholder:"PATH"`
	WhereResult string    `help:"Only items whose result matches it." placeholder:"PATH"`
	Corrected   bool      `help:"Only items whose data was corrected."`
}

type chosen struct {
	itemChoice
	State []string `json:"states" enum:"done,failed" help:"Only what is done, or failed, at the step." placeholder:"STATE"`
	evidence
}

type failedAt struct {
	FailedAt string `help:"With --code or --group: items that failed at this step; --step recomputes the part they were given." placeholder:"STEP"`
}

func (c *chosen) none() bool {
	return len(c.Key)+len(c.Code)+len(c.Group)+len(c.State) == 0 && c.Keys == "" && c.evidence == evidence{}
}

// chooseOf is the help when nothing was selected.
const chooseOf = "--key K, --keys FILE, --code C, --group G, or evidence: --service, --since, --until, --where, " +
	"--where-result, --state, --corrected"

type ask[T any] = func(ctx context.Context, keys []string, dry bool, options ...client.CallOption) (T, error)

func asking[S, T any](
	flags any, ref string, call func(context.Context, string, S, ...client.CallOption) (T, error),
) ask[T] {
	return func(ctx context.Context, keys []string, dry bool, options ...client.CallOption) (none T, err error) {
		var set S
		chosen := struct {
			Keys   []string
			DryRun bool
		}{keys, dry}
		if err := cmp.Or(cli.Fill(&set, flags), cli.Fill(&set, chosen)); err != nil {
			return none, err
		}
		return call(ctx, ref, set, options...)
	}
}

type redoing[T any] struct {
	chosen *chosen
	dry    bool
	ask    ask[T]
	add    func(sum, one *T) T // merges the results of two requests
	items  func(*T) int64
	did    string // past participle, for messages
	once   string // an option for a single request only, if given
	each   bool   // each request creates a generation
}

// do sends one request, or, for a key file, as many as its keys need. Before the first change all of them are tried
// as dry runs.
func (r *redoing[T]) do(ctx context.Context, term *cli.Console) (done T, err error) {
	if r.chosen.Keys == "" {
		return r.ask(ctx, r.chosen.Key, r.dry)
	}
	parts, err := cli.ReadKeys(r.chosen.Keys, term.In)
	switch {
	case err != nil:
		return done, err
	case len(parts) == 1:
		return r.ask(ctx, parts[0], r.dry)
	case r.once != "":
		return done, cli.Usage(fmt.Sprintf("--keys %s has more than %s keys, which need several requests, and %s is for "+
			"one: run a smaller file first instead", r.chosen.Keys, cli.Count(cli.MaxKeysOfRequest), r.once))
	}
	done, parts, err = r.send(ctx, parts, true)
	if err != nil || r.dry {
		return done, err
	}
	if len(parts) > 1 && r.each {
		term.Note("%s has keys for %d requests; each is a generation", r.chosen.Keys, len(parts))
	}
	done, _, err = r.send(ctx, parts, false)
	return done, err
}

// send sends the parts of a key file. It returns the merged results and the parts with items to change: together they
// are one selection, so a part without any is not an error.
func (r *redoing[T]) send(ctx context.Context, parts [][]string, dry bool) (sum T, fit [][]string, err error) {
	var nothing error
	for i, keys := range parts {
		one, err := r.ask(ctx, keys, dry)
		said, ok := errors.AsType[*client.ProblemError](err)
		switch {
		case dry && ok && said.Type == client.NothingToDo:
			nothing = cmp.Or(nothing, err)
			continue
		case err != nil && !dry && i > 0:
			return sum, nil, fmt.Errorf("request %d of %d, after %s items %s: %w", i+1, len(parts),
				cli.Count(r.items(&sum)), r.did, err)
		case err != nil:
			return sum, nil, err
		case len(fit) == 0:
			sum = one
		default:
			sum = r.add(&sum, &one)
		}
		fit = append(fit, keys)
	}
	if len(fit) == 0 {
		return sum, nil, nothing
	}
	return sum, fit, nil
}

func (r *redoing[T]) tell(term *cli.Console, done *T, text func(*T) string) error {
	switch {
	case term.JSON && r.chosen.Keys == "":
		return term.Sent()
	case term.JSON:
		return term.Document(*done)
	}
	return term.Printf("%s", text(done))
}

func firstKeys(keys []string, of int64) string {
	if len(keys) == 0 {
		return ""
	}
	return "  " + keysText(keys, of) + "\n"
}

func keysText(keys []string, of int64) string {
	shown := make([]string, len(keys))
	for i, k := range keys {
		shown[i] = cli.Short(cli.EscapeControl(k), 40)
	}
	more := of - int64(len(keys))
	return strings.Join(shown, ", ") + cli.If(more > 0, " and %v more", more)
}

type runAccept struct {
	runArg
	Failed bool `xor:"which" help:"All items that failed."`
	chosen
	Step     string `help:"Failures of this step; without it, of every step." placeholder:"NAME"`
	Withdraw bool   `help:"Withdraw their acceptance."`
	Reason   string `help:"Why; required unless --withdraw." placeholder:"TEXT"`
	DryRun   bool   `help:"Change nothing; show what would be done."`
}

func (r *runAccept) Validate() error {
	switch {
	case !r.Failed && r.none():
		return errors.New("say which failures: --failed, " + chooseOf)
	case strings.TrimSpace(r.Reason) == "" && !r.Withdraw:
		return errors.New("say why, by --reason TEXT: it is shown with each failure that is accepted")
	}
	return nil
}

func (r *runAccept) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	accept := redoing[client.Accepted]{chosen: &r.chosen, dry: r.DryRun, add: addAccepted, did: "were accepted",
		items: func(a *client.Accepted) int64 { return a.Items }, ask: asking(r, r.Ref, cl.Accept)}
	done, err := accept.do(ctx, term)
	if err != nil {
		return err
	}
	return accept.tell(term, &done, acceptText)
}

func addAccepted(sum, one *client.Accepted) client.Accepted {
	both := *one
	both.Items += sum.Items
	both.Examples = sum.Examples
	both.Steps = addByName(both.Steps, sum.Steps, func(st *client.StepAccepted) string { return st.Step },
		func(to, st *client.StepAccepted) { to.Items += st.Items })
	return both
}

func addByName[S any](a, b []S, name func(*S) string, add func(to, of *S)) []S {
	for i := range b {
		at := slices.IndexFunc(a, func(of S) bool { return name(&of) == name(&b[i]) })
		if at < 0 {
			a = append(a, b[i])
		} else {
			add(&a[at], &b[i])
		}
	}
	return a
}

func acceptText(done *client.Accepted) string {
	text := cli.Text("run %v: %v %vaccepted%v: %v\n", done.Run, itemCount(done.Items), cli.If(done.DryRun, "would be "),
		cli.If(done.Withdraw, " no longer"), failedText(done.Failed, done.Accepted))
	var steps cli.Table
	for _, st := range done.Steps {
		steps.If(len(done.Steps) > 1, "  "+st.Step, "%v", st.Items)
	}
	text += steps.String()
	if done.DryRun {
		return "dry run: " + text + firstKeys(done.Examples, done.Items) + "nothing was changed\n"
	}
	return text
}
