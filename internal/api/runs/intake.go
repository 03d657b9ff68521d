package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/intake/spool"
	"github.com/tranchehq/tranche/workqueue/start"
)

// maxSpooled is how many bytes uploads may take on the disk, all together, if half of what is free is not less.
const maxSpooled = 16 << 30

// maxQueryBytes bounds the text of a query that yields items.
const maxQueryBytes = 64 << 10

// ItemSource says where items come from that are not in the body: a query, or a stream.
type ItemSource struct {
	SQL       string `json:"sql,omitempty" doc:"a query whose rows are the items, instead of a body"`
	SQLSource string `json:"sql_source,omitempty" doc:"where to ask it: a source of serve --connections"`

	Stream        string `json:"stream,omitempty" doc:"a JetStream stream whose messages are the items, instead of a body"`
	StreamSubject string `json:"stream_subject,omitempty" doc:"only messages of this subject, which may have wildcards"`
	StreamFrom    uint64 `json:"stream_from,omitempty" doc:"only messages from this sequence on"`

	FromRun    string   `json:"from_run,omitempty" doc:"an earlier run to carry on; a body corrects items of it"`
	FromStates []string `json:"from_states,omitempty" nullable:"false" doc:"which items: failed, missing, cancelled; absent: all these"` //nolint:lll // a tag
}

// ItemSourceQuery is ItemSource in a query.
type ItemSourceQuery struct {
	SQL           string `query:"sql" doc:"a query whose rows are the items, instead of a body"`
	SQLSource     string `query:"sql_source" doc:"where to ask it: a source of serve --connections"`
	Stream        string `query:"stream" doc:"a JetStream stream whose messages are the items, instead of a body"`
	StreamSubject string `query:"stream_subject" doc:"only messages of this subject, which may have wildcards"`
	StreamFrom    uint64 `query:"stream_from" doc:"only messages from this sequence on"`

	FromRun    string   `query:"from_run" doc:"an earlier run to carry on, with items of it; a body corrects some of them"`
	FromStates []string `query:"from_state,explode" doc:"which items: failed, missing, cancelled; absent: all these"`
}

// elsewhere reports whether the items are not in the body.
func (f *ItemSource) elsewhere() bool { return f.SQL != "" || f.Stream != "" || f.FromRun != "" }

// Validate refuses what does not go together.
func (f *ItemSource) Validate(set *RunSettings) error {
	if f.FromRun != "" {
		return f.validateCarried()
	}
	switch {
	case len(f.FromStates) > 0:
		return kernel.BadInput("from_state says which items of an earlier run; give from_run too")
	case f.SQL != "" && f.Stream != "":
		return kernel.BadInput("give either sql or stream: the items come from one place")
	case (f.SQL == "") != (f.SQLSource == ""):
		return kernel.BadInput("sql and sql_source go together: a query, and the name of the source to ask")
	case f.Stream == "" && (f.StreamSubject != "" || f.StreamFrom != 0):
		return kernel.BadInput("stream_subject and stream_from say which messages of a stream; give stream too")
	case len(f.SQL) > maxQueryBytes:
		return kernel.BadInput(fmt.Sprintf("sql has %d bytes, and at most %d are allowed; make a view of it", len(f.SQL),
			maxQueryBytes))
	case f.elsewhere() && set.Format != "":
		return kernel.BadInput("format is about items in the body; leave it out with sql and stream")
	}
	return nil
}

// startContent is what tells a start from others with the same idempotency key. What a query or a stream yields may be
// other items when it is asked again, after an answer that was lost; what was asked is the same.
func startContent(set *RunSettings) *start.Content {
	said := map[string]string{"on_duplicate": cmp.Or(set.OnDuplicate, string(start.DuplicateError))}
	for name, value := range map[string]string{
		"sql": set.SQL, "sql_source": set.SQLSource, "stream": set.Stream, "stream_subject": set.StreamSubject,
		"from_run": set.FromRun, "from_states": strings.Join(set.FromStates, ","),
		"corrections": set.corrections,
	} {
		if value != "" {
			said[name] = value
		}
	}
	if set.StreamFrom != 0 {
		said["stream_from"] = strconv.FormatUint(set.StreamFrom, 10)
	}
	return &start.Content{Said: said, Items: !set.elsewhere()}
}

// rowsOf opens what the items of a start come from. The caller closes it.
func (s *Starts) rowsOf(r *http.Request, settings *RunSettings, look *gather.Items, items io.Reader,
) (*intake.Reader, error) {
	config, err := s.IntakeConfig(r.Context(), settings.Format, settings.Key, look)
	if err != nil {
		return nil, err
	}
	config.Source = settings.Source
	if !settings.elsewhere() {
		return intake.Open(wholeItems{items}, config)
	}
	if settings.FromRun != "" {
		return carrying{s}.items(r.Context(), settings, &config, items)
	}
	if items != nil {
		if n, err := io.ReadFull(items, make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			return nil, kernel.BadInput("there are items in the body, and a query or a stream to take them from; " +
				"send one of both")
		}
	}
	if settings.SQL != "" {
		return s.OpenSQL(r.Context(), settings, config)
	}
	return s.openStream(r.Context(), settings, config)
}

// SpoolOf keeps what comes with a request. Where nobody says who they are, there is no bound of each user.
func (s *Starts) SpoolOf(ctx context.Context) spool.Spool {
	who, _ := access.From(ctx)
	return spool.Spool{Dir: s.config.SpoolDir, Room: s.Spool, User: who.Name}
}

// newSpoolRoom is the room on the disk that a directory is on.
func newSpoolRoom(dir string) *spool.Room {
	dir = cmp.Or(dir, os.TempDir())
	return spool.NewRoom(maxSpooled, func() (int64, bool) { return health.FreeAt(dir) })
}

// IntakeConfig is how items are read, of which a plan says what they must look like. The plan is valid.
func (s *Starts) IntakeConfig(ctx context.Context, format, key string, look *gather.Items) (intake.Config, error) {
	spool := s.SpoolOf(ctx)
	config := intake.Config{
		Format: intake.Format(format), Key: key, MaxDecompressed: maxDecompressed, MaxDepth: wire.DefaultMaxDepth,
		Spool: &spool, TakeInvalid: look.Invalid == gather.InvalidFail,
		Encoding: look.Encoding, NoHeader: look.NoHeader, Delimiter: look.Separator(), Columns: look.Columns,
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

// OpenSQL asks a source for items. The caller closes it.
func (s *Starts) OpenSQL(ctx context.Context, settings *RunSettings, config intake.Config) (*intake.Reader, error) {
	if s.config.Connections == nil {
		return nil, UnknownSource(settings.SQLSource)
	}
	source, err := s.config.Connections.Source(settings.SQLSource)
	if err != nil {
		return nil, kernel.BadInput(err.Error())
	}
	return intake.OpenSQL(ctx, intake.SQLSource{
		Name: source.Name, Explain: source.Explain,
		MaxRows: source.MaxRows, MaxBytes: int64(source.MaxBytes), MaxTime: source.MaxTime,
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

// LoadItems makes a source of items for the store of rows that were read.
func LoadItems(rows *intake.Reader) func(*start.LoadItem) error {
	var read row.Item
	return func(item *start.LoadItem) error {
		if err := rows.Next(&read); err != nil {
			return err
		}
		item.Key, item.Payload, item.Line, item.Invalid = read.Key, read.Payload, read.Line, read.Invalid
		return nil
	}
}

// UnknownSource says that this server knows no sources.
func UnknownSource(name string) error {
	return kernel.BadInput(fmt.Sprintf("this node knows no source %q: it was started without --connections, the file "+
		"that says which there are", kernel.Cut(name, kernel.MaxEchoed)))
}
