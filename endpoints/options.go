package endpoints

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Defaults of the options.
const (
	DefaultListConcurrency = 2
	DefaultEachConcurrency = 8
	// One handler, or stage; then `timeout`, to be tried again.
	DefaultTimeout    = 10 * time.Minute
	DefaultFlushBytes = 256 << 10
)

// Option sets how one endpoint is served.
type Option func(*options)

type options struct {
	serve.Settings
	wrap []Wrapper
}

// Concurrency is how many chunks (HandleList, default 2) or items (HandleEach, default 8) are handled at once by this
// instance. While handlers are quick, as many chunks again are fetched ahead, up to 8 MiB. Service.SetConcurrency
// changes it while the service runs, and so do operators, whose word comes first.
func Concurrency(n int) Option { return func(o *options) { o.Concurrency = n } }

// Reserve keeps n places for those who wait, beside those that Concurrency has for chunks: calls, and flows on behalf
// of one. They come before chunks everywhere, but without a place of their own they wait until a chunk, or an item of
// HandleEach, has ended. Default: 1 where Concurrency is 4 or more, so that up to n more handlers run at once than it
// says; else 0.
func Reserve(n int) Option { return func(o *options) { o.Reserve = n } }

// Timeout is how long a chunk may take, by default 10 minutes. Then the handler's context ends, and what is not
// answered by then is reported as to be tried again. The node's deadline for the slice should be longer.
func Timeout(d time.Duration) Option { return func(o *options) { o.Timeout = d } }

// FlushBytes sends a part of the reply whenever so many bytes are ready, by default 256 KiB. A message never passes the
// server's max_payload, whatever this says.
func FlushBytes(n int) Option { return func(o *options) { o.FlushBytes = n } }

// Compress sends messages of at least n bytes as zstd. Off by default: it saves most of the bytes of a reply for about
// a third of a microsecond an item.
func Compress(n int) Option { return func(o *options) { o.Compress = n } }

func newOptions(concurrency int, list []Option) (options, error) {
	o := options{Settings: serve.Settings{Concurrency: concurrency, Reserve: -1, Timeout: DefaultTimeout,
		FlushBytes: DefaultFlushBytes}}
	for _, set := range list {
		set(&o)
	}
	switch {
	case o.Concurrency < 1 || o.Concurrency > wire.MaxConcurrency:
		return o, fmt.Errorf("Concurrency is %d; it must be 1 to %d", o.Concurrency, wire.MaxConcurrency)
	case o.Reserve < -1 || o.Reserve > wire.MaxConcurrency:
		return o, fmt.Errorf("Reserve is %d; it must be 0 to %d", o.Reserve, wire.MaxConcurrency)
	case o.Timeout <= 0:
		return o, fmt.Errorf("Timeout is %s; it must be positive", o.Timeout)
	case o.FlushBytes < 1:
		return o, errors.New("FlushBytes must be positive")
	case !validRevision(o.Revision):
		return o, fmt.Errorf("Revision is %.80q; use up to %d printable ASCII characters", o.Revision, maxRevision)
	case o.Compress < 0:
		return o, errors.New("Compress must not be negative")
	case slices.ContainsFunc(o.wrap, func(w Wrapper) bool { return w == nil }):
		return o, errors.New("Wrap needs a function")
	}
	return o, nil
}
