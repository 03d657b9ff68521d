package runs

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/start"
)

// maxSpooled limits the disk space of all uploads, together with half of the free space.
const maxSpooled = 16 << 30

const maxQueryBytes = 64 << 10

// ItemSource is the source of items that are not in the body: a query, a stream or a run.
type ItemSource struct {
	SQL       string `json:"sql,omitempty" query:"sql" doc:"a query whose rows are the items, instead of a body"`
	SQLSource string `json:"sql_source,omitempty" query:"sql_source" doc:"source to query, from serve --connections"`

	Stream        string `json:"stream,omitempty" query:"stream" doc:"a JetStream stream whose messages are the items, instead of a body"`
	StreamSubject string `json:"stream_subject,omitempty" query:"stream_subject" doc:"only messages of this subject, which may have wildcards"`
	StreamFrom    uint64 `json:"stream_from,omitempty" query:"stream_from" doc:"only messages starting with this sequence"`

	FromRun    string   `json:"from_run,omitempty" query:"from_run" doc:"an earlier run to continue; a body corrects items of it"`
	FromStates []string `json:"from_states,omitempty" query:"from_state,explode" nullable:"false" doc:"which items: failed, missing, cancelled; absent: all these"`
}

func (f *ItemSource) elsewhere() bool { return f.SQL != "" || f.Stream != "" || f.FromRun != "" }

// Validate refuses conflicting members.
func (f *ItemSource) Validate(set *RunSettings) error {
	if f.FromRun != "" {
		return f.validateCarried()
	}
	switch {
	case len(f.FromStates) > 0:
		return apicore.BadInput("from_state says which items of an earlier run; give from_run too")
	case f.SQL != "" && f.Stream != "":
		return apicore.BadInput("give either sql or stream: the items come from one place")
	case (f.SQL == "") != (f.SQLSource == ""):
		return apicore.BadInput("sql and sql_source go together: a query, and the name of the source to ask")
	case f.Stream == "" && (f.StreamSubject != "" || f.StreamFrom != 0):
		return apicore.BadInput("stream_subject and stream_from say which messages of a stream; give stream too")
	case len(f.SQL) > maxQueryBytes:
		return apicore.BadInput(fmt.Sprintf("sql has %d bytes, and at most %d are allowed; make a view of it", len(f.SQL),
			maxQueryBytes))
	case f.elsewhere() && set.Format != "":
		return apicore.BadInput("format is about items in the body; leave it out with sql and stream")
	}
	return nil
}

// startContent identifies a start with an idempotency key. A query or stream may yield other items when it is read
// again after a lost answer, so what was requested counts.
func startContent(set *RunSettings) *start.Content {
	said := map[string]string{"on_duplicate": cmp.Or(set.OnDuplicate, string(start.DuplicateError))}
	for field, value := range reflect.ValueOf(&set.ItemSource).Elem().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if text := fmt.Sprint(value.Interface()); !value.IsZero() && text != "[]" {
			said[name] = text
		}
	}
	if set.corrections != "" {
		said["corrections"] = set.corrections
	}
	return &start.Content{Said: said, Items: !set.elsewhere()}
}

// rowsOf opens the items. Of a repeated start they are compared only if they are in the body; others are not opened.
func (s *Starts) rowsOf(ctx context.Context, settings *RunSettings, look *gather.Items, items io.Reader, repeated bool,
) (*intake.Reader, error) {
	config, err := s.IntakeConfig(ctx, settings.Format, settings.Key, look)
	if err != nil {
		return nil, err
	}
	config.Source = settings.Source
	if !settings.elsewhere() {
		return intake.Open(wholeItems(items), config)
	}
	if settings.FromRun != "" {
		return carrying{s}.items(ctx, settings, &config, items, repeated)
	}
	if items != nil {
		if n, err := io.ReadFull(items, make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			return nil, apicore.BadInput("there are items in the body, and a query or a stream to take them from; " +
				"send one of both")
		}
	}
	if repeated {
		return notRead(config.Key, config), nil
	}
	if settings.SQL != "" {
		return s.OpenSQL(ctx, settings, config)
	}
	return s.openStream(ctx, settings, config)
}

// notRead replaces items that a repeated start does not read, unless its run was deleted meanwhile.
func notRead(key string, config intake.Config) *intake.Reader {
	return intake.Carry(key, config, func(*row.Item) error {
		return fmt.Errorf("the run that the idempotency key had started was removed just now: %w; start again",
			workqueue.ErrNotFound)
	})
}

// SpoolOf returns the spool of a request. Without authentication there is no limit per user.
func (s *Starts) SpoolOf(ctx context.Context) intake.Spool {
	who, _ := access.From(ctx)
	return intake.Spool{Dir: s.config.SpoolDir, Room: s.Spool, User: who.Name}
}

func newSpoolRoom(dir string) *intake.Room {
	dir = cmp.Or(dir, os.TempDir())
	return intake.NewRoom(maxSpooled, func() (int64, bool) { return health.FreeAt(dir) })
}

// IntakeConfig returns how to read items. look comes from a valid plan.
func (s *Starts) IntakeConfig(ctx context.Context, format, key string, look *gather.Items) (intake.Config, error) {
	spool := s.SpoolOf(ctx)
	config := intake.Config{
		Format: intake.Format(format), Key: key, MaxDecompressed: maxDecompressed, MaxDepth: wire.DefaultMaxDepth,
		Spool: &spool, TakeInvalid: look.OnInvalid == gather.InvalidFail,
		Encoding: look.Encoding, NoHeader: !look.HasHeader(), Delimiter: look.Separator(), Columns: look.Columns,
		Rename: look.Rename, Types: look.Types, Sort: look.Sort, Desc: look.Desc,
	}
	if len(look.Schema) > 0 {
		var err error
		if config.Schema, err = itemschema.Compile(look.Schema); err != nil {
			return config, fmt.Errorf("read the schema of the items: %w", err)
		}
	}
	return config, nil
}

// OpenSQL queries a source for items. The caller closes the reader.
func (s *Starts) OpenSQL(ctx context.Context, settings *RunSettings, config intake.Config) (*intake.Reader, error) {
	if s.config.Connections == nil {
		return nil, UnknownSource(settings.SQLSource)
	}
	source, err := s.config.Connections.Source(settings.SQLSource)
	if err != nil {
		return nil, apicore.BadInput(err.Error())
	}
	return intake.OpenSQL(ctx, intake.SQLSource{
		Name: source.Name, Explain: source.Explain,
		MaxRows: source.MaxRows, MaxBytes: int64(source.MaxBytes), MaxTime: time.Duration(source.MaxTime),
		Connect: source.Connect,
	}, settings.SQL, config)
}

func (s *Starts) openStream(ctx context.Context, settings *RunSettings, config intake.Config) (*intake.Reader, error) {
	js, err := jetstream.New(s.NC)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", settings.Stream, err)
	}
	return intake.OpenStream(ctx, js, intake.StreamSource{
		Name: settings.Stream, Subject: settings.StreamSubject, From: settings.StreamFrom,
		MaxMessage: s.NC.MaxPayload(),
	}, config)
}

// LoadItems adapts rows to a source of items for the store.
func LoadItems(rows *intake.Reader) func(*start.LoadItem) error {
	return func(item *start.LoadItem) error { return rows.Next((*row.Item)(item)) }
}

// UnknownSource is the error of a server without sources.
func UnknownSource(name string) error {
	return apicore.BadInput(fmt.Sprintf("this node knows no source %q: it was started without --connections, the file "+
		"that defines them", apicore.Echo(name)))
}

// Limits on corrections of items carried over from an earlier run, which are held in memory.
const (
	maxCarriedFixes     = 100_000
	maxCarriedFixesSize = 64 << 20
)

func (f *ItemSource) validateCarried() error {
	if f.SQL != "" || f.Stream != "" {
		return apicore.BadInput("give one of from_run, sql and stream: the items come from one place")
	}
	for _, s := range f.FromStates {
		if !slices.Contains([]string{"failed", "missing", "cancelled"}, s) {
			return apicore.BadInput(fmt.Sprintf("from_state is %q; it must be failed, missing or cancelled", apicore.Echo(s)))
		}
	}
	return nil
}

// states lists the outcomes of the items to take. Items without outcome in a cancelled run are missing.
func (f *ItemSource) states() (all []workqueue.Outcome) {
	if len(f.FromStates) == 0 || slices.Contains(f.FromStates, "failed") {
		all = append(all, workqueue.OutcomeFailed)
	}
	if len(f.FromStates) == 0 || slices.Contains(f.FromStates, "missing") || slices.Contains(f.FromStates, "cancelled") {
		all = append(all, workqueue.OutcomeMissing)
	}
	return all
}

type carrying struct{ s *Starts }

// plan resolves the run that the settings continue. The new run uses its plan and parameters unless others are given.
func (c carrying) plan(ctx context.Context, set *RunSettings,
) (run workqueue.RunID, plan *gather.Plan, version int, err error) {
	if set.FromRun == "" {
		return run, nil, 0, nil
	}
	known, err := c.repeated(ctx, set)
	if err != nil {
		return run, nil, 0, err
	}
	id, err := inspect.New(c.s.Store).Resolve(ctx, set.FromRun)
	if err != nil {
		return run, nil, 0, err
	}
	set.FromRun = id.String()
	view, err := inspect.New(c.s.Store).Run(ctx, id)
	if err != nil {
		return run, nil, 0, err
	}
	if into := workqueue.Into(ctx); view.Namespace != into {
		return run, nil, 0, apicore.BadInput(fmt.Sprintf(
			"from_run: run %s is in namespace %s, not in %s; add --namespace %[2]s", id, view.Namespace, into))
	}
	set.Source = cmp.Or(set.Source, "run "+set.FromRun)
	if len(set.Params) == 0 {
		if errors.Is(view.ParamsError, database.ErrDamaged) {
			return run, nil, 0, apicore.BadInput(fmt.Sprintf("params: missing; those of run %s cannot be decrypted", id))
		} else if view.ParamsError != nil {
			return run, nil, 0, view.ParamsError
		}
		set.Params = maps.Clone(view.Params)
	}
	if set.Endpoint+set.Plan+set.PlanRef != "" {
		return id, nil, 0, nil
	}
	plan = &gather.Plan{}
	if err := json.Unmarshal(view.Spec, plan); err != nil {
		return run, nil, 0, fmt.Errorf("read the plan of run %s: %w", id, err)
	}
	now := time.Now()
	if !known.At.IsZero() {
		now = known.At // this start is repeated
	}
	if by, err := time.Parse(time.RFC3339, plan.DoneBy); err == nil && !by.After(now) {
		plan.DoneBy, plan.Gentle = "", false // that time was the earlier run's
	}
	return id, plan, view.Version, nil
}

// repeated returns the run that an earlier request with this key started, or none. The last run may now be that run, so
// it also sets FromRun.
func (c carrying) repeated(ctx context.Context, set *RunSettings) (start.Keyed, error) {
	known, err := start.New(c.s.Store).Keyed(ctx, set.IdempotencyKey)
	if errors.Is(err, workqueue.ErrNotFound) {
		return known, nil
	}
	if set.FromRun == inspect.LastRun && known.FromRun != nil {
		set.FromRun = known.FromRun.String()
	}
	return known, err
}

// items reads the items of an earlier run, with payloads from the body laid over them.
func (c carrying) items(ctx context.Context, set *RunSettings, config *intake.Config, items io.Reader, repeated bool,
) (*intake.Reader, error) {
	id, err := inspect.New(c.s.Store).Resolve(ctx, set.FromRun)
	if err != nil {
		return nil, err
	}
	var from *report.Carried
	if !repeated {
		if from, err = report.New(c.s.Store).NewCarried(ctx, id, set.states()); err != nil {
			return nil, err
		}
	}
	fixes, key, err := c.fixes(ctx, id, set, *config, items)
	if err != nil {
		return nil, err
	}
	set.corrections = digestOf(fixes)
	if repeated {
		return notRead(key, *config), nil
	}
	used := map[string]bool{}
	taken := 0
	return intake.Carry(key, *config, func(item *row.Item) error {
		key, payload, err := from.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && taken+len(fixes) == 0:
			return nothingToCarry(id, set.FromStates)
		case errors.Is(err, io.EOF) && len(used) < len(fixes):
			maps.DeleteFunc(fixes, func(key, _ string) bool { return used[key] })
			return notCarried(id, fixes)
		case err != nil:
			return err
		}
		taken++
		item.Line, item.Key, item.Payload = taken, key, append(item.Payload[:0], payload...)
		if fixed, ok := fixes[key]; ok {
			if used[key] {
				return apicore.BadInput(fmt.Sprintf("the correction has key %.80q, which several items of run %s have: "+
					"it is ambiguous; nothing was started; leave it out", key, id))
			}
			item.Payload = append(item.Payload[:0], fixed...)
			used[key] = true
		}
		return nil
	}), nil
}

func nothingToCarry(id workqueue.RunID, states []string) error {
	if len(states) == 0 {
		states = []string{"failed", "missing"}
	}
	return &row.InputError{Err: row.ErrNoRows, Reason: fmt.Sprintf("run %s has no items in these states: %s; "+
		"what it has is in: tranche run show %s", id, strings.Join(states, ", "), id)}
}

func digestOf(fixes map[string]string) string {
	if len(fixes) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(fixes)) {
		_, _ = fmt.Fprintf(sum, "%q%q", key, fixes[key]) // a hash never fails
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func notCarried(id workqueue.RunID, fixes map[string]string) error {
	keys := slices.Sorted(maps.Keys(fixes))
	shown := make([]string, min(len(keys), 20))
	for i := range shown {
		shown[i] = fmt.Sprintf("%.80q", keys[i])
	}
	more := ""
	if n := len(keys) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return apicore.BadInput(fmt.Sprintf("the correction has keys that are not among those taken from run %s: %s%s; "+
		"nothing was started, leave them out", id, strings.Join(shown, ", "), more))
}

func wholeItems(from io.Reader) io.Reader {
	return apicore.Whole(from, "the items", "nothing was stored")
}

// ExportOf says how to read an edited export of a run. Its columns have the payloads' names, so the plan's shape does
// not apply, only what said gives.
func ExportOf(ctx context.Context, store *database.DB, run workqueue.RunID, config intake.Config, said *gather.Items,
) *intake.Export {
	config.Encoding, config.NoHeader = said.Encoding, !said.HasHeader()
	config.Delimiter = said.Separator()
	config.Columns, config.Rename = said.Columns, said.Rename
	return &intake.Export{Config: config, Payloads: func(keys []string) (map[string]string, error) {
		return report.New(store).Payloads(ctx, run, keys)
	}}
}

func (c carrying) fixes(ctx context.Context, id workqueue.RunID, set *RunSettings, config intake.Config,
	items io.Reader,
) (fixes map[string]string, key string, err error) {
	if items == nil {
		return nil, "", nil
	}
	whole := bufio.NewReader(wholeItems(items))
	if _, err := whole.Peek(1); errors.Is(err, io.EOF) {
		return nil, "", nil
	}
	config.TakeInvalid, config.Sort, config.Source = false, "", "" // corrections must be valid
	config.Partial = true
	said, err := set.Over(gather.Single("any"))
	if err != nil {
		return nil, "", BadSetting(err)
	}
	config.Export = ExportOf(ctx, c.s.Store, id, config, &said.Items)
	rows, err := intake.Open(whole, config)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = rows.Close() }() // read only, nothing is lost
	size := 0
	fixes = map[string]string{}
	var item row.Item
	for {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) {
			return fixes, rows.Key(), nil
		}
		if err != nil {
			return nil, "", err
		}
		if _, twice := fixes[item.Key]; twice {
			return nil, "", apicore.BadInput(fmt.Sprintf("what corrects items has key %.80q twice; give each item once",
				item.Key))
		}
		fixes[item.Key] = string(item.Payload)
		if size += len(item.Key) + len(item.Payload); len(fixes) > maxCarriedFixes || size > maxCarriedFixesSize {
			return nil, "", workqueue.TooLarge("more than %d items or %d MiB correct items of the earlier run; start without "+
				"them, and correct the new run: tranche run correct", maxCarriedFixes, maxCarriedFixesSize>>20)
		}
	}
}
