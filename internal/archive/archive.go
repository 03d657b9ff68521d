// Package archive stores runs and the audit log as objects before retention deletes them.
//
// A run is a folder: its items as an export, its rows of the audit log, and, written last, a manifest with its document
// and the lines, bytes and hash of each object. So is a range of the audit log. The folder's name says in which state
// the run was: objects of one name have the same content, whichever node writes them, however often.
package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// Storage stores objects.
type Storage interface {
	// Put stores body until io.EOF, replacing the object of that name; after an error it stores nothing.
	Put(ctx context.Context, name string, body io.Reader) error
	// Target is the human-readable name of the storage.
	Target() string
}

// WriteItems writes the items of a run with this many steps as NDJSON, and returns their number.
type WriteItems func(ctx context.Context, db *database.DB, run workqueue.RunID, steps int, out io.Writer) (int64, error)

// Archive stores runs and the audit log. It is safe for concurrent use if its storage is.
type Archive struct {
	db      *database.DB
	storage Storage
	items   WriteItems
}

// New returns an archive in a storage, of the runs in db.
func New(db *database.DB, storage Storage, items WriteItems) *Archive {
	return &Archive{db, storage, items}
}

// Target names the storage.
func (a *Archive) Target() string { return a.storage.Target() }

type manifest struct {
	Run     *inspect.RunView `json:"run,omitempty"`
	Params  string           `json:"params_error,omitempty"` // why the run has none here
	Head    string           `json:"head,omitempty"`         // of a range of the audit log, for tranche audit verify
	Objects []*object        `json:"objects"`
}

type object struct {
	Name   string `json:"name"`
	Lines  int64  `json:"lines"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

const (
	itemsName    = "items.ndjson.gz"
	auditName    = "audit.ndjson.gz"
	manifestName = "manifest.json"
	readmeName   = "README"
	readme       = "Archived by tranche serve --archive before retention deletes it; see docs/retention.md.\n"
)

// Check stores a small object.
func (a *Archive) Check(ctx context.Context) error {
	dir, err := a.folder(ctx)
	if err != nil {
		return err
	}
	return a.put(ctx, path.Join(dir, readmeName), strings.NewReader(readme))
}

// folder returns a name below the database's own folder.
func (a *Archive) folder(ctx context.Context, names ...string) (string, error) {
	installation, err := retention.New(a.db).Installation(ctx)
	return path.Join(append([]string{installation.String()}, names...)...), err
}

var errChanged = errors.New("changed while it was archived")

// Run stores a run and returns in which state; empty: it was changed or deleted meanwhile.
func (a *Archive) Run(ctx context.Context, run workqueue.RunID) (state string, err error) {
	defer func() {
		if errors.Is(err, errChanged) || errors.Is(err, workqueue.ErrNotFound) {
			state, err = "", nil
		}
	}()
	store := retention.New(a.db)
	if err := store.SealAudit(ctx); err != nil {
		return "", err
	}
	if state, err = store.RunState(ctx, run); err != nil {
		return "", err
	}
	view, err := inspect.New(a.db).Run(ctx, run)
	if err != nil {
		return "", err
	}
	dir, err := a.folder(ctx, "runs", run.String(), state)
	if err != nil {
		return "", err
	}
	items, err := a.lines(ctx, dir, itemsName, func(out io.Writer) (int64, error) {
		return a.items(ctx, a.db, run, len(view.Steps), out)
	})
	if err == nil && items.Lines != view.Items {
		err = fmt.Errorf("run %s has %d items, and %d were exported", run, view.Items, items.Lines)
	}
	if err != nil {
		return "", err
	}
	audit, _, err := a.audit(ctx, dir, run, 0, math.MaxInt64, func() error { return nil })
	if err != nil {
		return "", err
	}
	is, err := store.RunState(ctx, run)
	if err == nil && is != state {
		err = errChanged
	}
	if err != nil {
		return "", err
	}
	m := manifest{Run: view, Objects: []*object{items, audit}}
	if view.ParamsError != nil {
		m.Params = view.ParamsError.Error()
	}
	return state, a.finish(ctx, dir, m)
}

// Audit stores the rows of the audit log after a seal, up to another one.
func (a *Archive) Audit(ctx context.Context, after, last int64) error {
	dir, err := a.folder(ctx, "audit", fmt.Sprintf("%012d-%012d", after+1, last))
	if err != nil {
		return err
	}
	rows, head, err := a.audit(ctx, dir, workqueue.RunID{}, after, last, func() error {
		// While no other leader has archived them, none of them was deleted.
		is, _, err := retention.New(a.db).AuditToArchive(ctx, time.Time{})
		if err == nil && is != after {
			err = errChanged
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.finish(ctx, dir, manifest{Head: head, Objects: []*object{rows}})
}

func (a *Archive) audit(ctx context.Context, dir string, run workqueue.RunID, after, last int64, whole func() error,
) (o *object, head string, err error) {
	o, err = a.lines(ctx, dir, auditName, func(out io.Writer) (n int64, err error) {
		lines := json.NewEncoder(out)
		lines.SetEscapeHTML(false)
		err = inspect.New(a.db).EachChainRow(ctx, run, after, last, func(row *inspect.ChainRow) error {
			n++
			head = fmt.Sprintf("%d:%s", row.Seal, row.Hash)
			return lines.Encode(row)
		})
		if err == nil {
			err = whole()
		}
		return n, err
	})
	return o, head, err
}

// lines stores an object, compressed, and returns what the manifest says of it.
func (a *Archive) lines(ctx context.Context, dir, name string, write func(io.Writer) (int64, error)) (*object, error) {
	o := &object{Name: name}
	out, in := io.Pipe()
	wrote := make(chan error)
	go func() {
		sum := sha256.New()
		packed, _ := gzip.NewWriterLevel(io.MultiWriter(in, sum, (*counter)(&o.Bytes)), gzip.BestSpeed) // a valid level
		var err error
		if o.Lines, err = write(packed); err == nil {
			err = packed.Close()
		}
		o.SHA256 = hex.EncodeToString(sum.Sum(nil))
		_ = in.CloseWithError(err) // nil is the end
		wrote <- err
	}()
	err := a.put(ctx, path.Join(dir, name), out)
	_ = out.Close() // ends the writer if the storage has not taken all
	if failed := <-wrote; failed != nil && (err == nil || !errors.Is(failed, io.ErrClosedPipe)) {
		err = failed
	}
	return o, err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func (a *Archive) finish(ctx context.Context, dir string, m manifest) error {
	doc, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return a.put(ctx, path.Join(dir, manifestName), bytes.NewReader(doc))
}

// stallTimeout limits how long the storage reads nothing, and how long it needs after the end.
const stallTimeout = 5 * time.Minute

var errStalled = fmt.Errorf("stalled for %s", stallTimeout)

func (a *Archive) put(ctx context.Context, name string, body io.Reader) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stall := time.AfterFunc(stallTimeout, func() { stop(errStalled) })
	defer stall.Stop()
	err := a.storage.Put(ctx, name, &watched{body, stall})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("store %s in %s: %w", name, a.Target(), err)
	}
	return nil
}

// watched resets a timer at each read.
type watched struct {
	io.Reader
	stall *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	w.stall.Reset(stallTimeout)
	return w.Reader.Read(p)
}
