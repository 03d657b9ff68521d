package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	// contractWait limits how long a start waits for its services to report what they read. Services that do not answer
	// by then are not compared.
	contractWait = 2 * time.Second
	// maxCompared limits the items compared with what services read.
	maxCompared    = 100
	maxNamedFields = 10
)

// Contract is what the services of a plan's steps read of each item.
type Contract struct {
	warn    bool
	readers []reader
	without []string        // messages about steps that do not pass on the fields that their services require
	all     bool            // nothing else reads items
	also    map[string]bool // fields that the plan itself reads
	known   bool            // the start is repeated: nothing is compared
}

type reader struct {
	endpoint string
	required []string
	reads    map[string]json.RawMessage
}

// ContractOf queries the services of a start's steps for what they read and refuses steps that do not pass it on. It
// is empty for a repeated start, which gets its first answer regardless of what the services read by now.
func (s *Starts) ContractOf(ctx context.Context, req *start.LoadRequest) (*Contract, error) {
	if req.IdempotencyKey != "" {
		_, err := start.New(s.Store).Keyed(ctx, req.IdempotencyKey)
		if err == nil || !errors.Is(err, workqueue.ErrNotFound) {
			return &Contract{known: true}, err
		}
	}
	plan := &gather.Plan{}
	if err := json.Unmarshal(req.Spec, plan); err != nil {
		return nil, fmt.Errorf("read the plan of run %q: %w", req.Name, err)
	}
	c, err := s.contractOf(ctx, plan)
	if err == nil && len(c.without) > 0 && !c.warn {
		err = apicore.BadInput(strings.Join(c.without, "; ") + ". Nothing was stored. Add item to its inputs; or start " +
			"anyway: --contract warn")
	}
	return c, err
}

func (s *Starts) contractOf(ctx context.Context, plan *gather.Plan) (*Contract, error) {
	c := &Contract{warn: plan.Items.Contract == gather.ContractWarn, all: true}
	c.also = map[string]bool{plan.Items.Sort: true}
	if plan.Items.Contract == gather.ContractOff || !s.NC.IsConnected() {
		return c, nil
	}
	field, _, _ := strings.Cut(plan.Order.By, ".")
	c.also[field] = true
	var steps []*gather.Step
	for i := range plan.Steps {
		step := &plan.Steps[i]
		if step.Endpoint+step.Direct != "" {
			steps = append(steps, step)
		} else if step.SeesItem() {
			c.all = false
		}
	}
	return c, c.ask(ctx, s, steps)
}

func (c *Contract) ask(ctx context.Context, s *Starts, steps []*gather.Step) error {
	ctx, cancel := context.WithTimeout(ctx, contractWait)
	defer cancel()
	said := make([]wire.Contract, len(steps))
	var asking errgroup.Group
	for i, step := range steps {
		asking.Go(func() (err error) {
			said[i], err = wire.AskContract(ctx, s.NC, step.TargetKey())
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	for i, step := range steps {
		r, whole := readerOf(step.TargetKey(), said[i].In)
		switch {
		case !step.SeesItem() && len(r.required) > 0:
			c.without = append(c.without, fmt.Sprintf("step %s calls %s, which requires %s, and its inputs leave the item out",
				step.Name, r.endpoint, quoted(r.required)))
		case step.SeesItem() && !slices.ContainsFunc(c.readers, func(o reader) bool { return o.endpoint == r.endpoint }):
			c.all = c.all && whole
			c.readers = append(c.readers, r)
		}
	}
	return nil
}

// readerOf returns the fields that a JSON Schema names, and whether nothing else is read. An unknown schema counts as
// stating nothing.
func readerOf(endpoint string, schema json.RawMessage) (r reader, whole bool) {
	var known struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	var keywords map[string]json.RawMessage
	if json.Unmarshal(schema, &known) != nil || json.Unmarshal(schema, &keywords) != nil {
		return reader{endpoint: endpoint}, false
	}
	whole = len(known.Properties) > 0
	for name, value := range keywords {
		switch name {
		case "type", "properties", "required", "title", "description", "$schema", "$id", "$defs", "$comment":
		case "additionalProperties":
			whole = whole && string(value) == "false"
		default: // may name other fields
			whole = false
		}
	}
	return reader{endpoint, known.Required, known.Properties}, whole
}

// Comparison compares the first items of a start, an add or a correction with a Contract.
type Comparison struct {
	contract *Contract
	rows     *intake.Reader
	key      func() string  // names the key's field
	names    []string       // of fields, in order of appearance
	has      map[string]int // number of items per field
	items    int
	done     bool

	Warnings []string // complete once enough items, or all, were read
}

// Compare returns a Comparison for rows.
func (c *Contract) Compare(rows *intake.Reader) *Comparison {
	return &Comparison{contract: c, rows: rows, key: rows.Key, has: map[string]int{},
		done: len(c.readers)+len(c.without) == 0}
}

// one compares the payload of one item, whose field with the key's value is the key. It returns warnings or an error.
func (c *Contract) one(key string, payload []byte) ([]string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil {
		return nil, fmt.Errorf("read the fields of item %q: %w", key, err)
	}
	field := ""
	for name, value := range fields {
		if strings.Trim(string(value), `"`) == key {
			field = name
		}
	}
	compared := &Comparison{contract: c, has: map[string]int{}, key: func() string { return field }}
	err := compared.see(payload, true, nil)
	if err == nil {
		err = compared.verdict()
	}
	return compared.Warnings, err
}

// Items is LoadItems plus an error if the items violate the contract.
func (c *Comparison) Items() func(*start.LoadItem) error {
	next := LoadItems(c.rows)
	return func(item *start.LoadItem) error {
		err := next(item)
		return c.see(item.Payload, item.Invalid == "", err)
	}
}

// see compares an item read with err, which is nil or io.EOF, and returns err or the violation.
func (c *Comparison) see(payload []byte, valid bool, err error) error {
	if c.done || err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err == nil && valid {
		c.items++
		for _, name := range intake.FieldNames(payload) {
			if c.has[name] == 0 {
				c.names = append(c.names, name)
			}
			c.has[name]++
		}
	}
	if err != nil || c.items == maxCompared {
		c.done = true
		if wrong := c.verdict(); wrong != nil {
			return wrong
		}
	}
	return err
}

func (c *Comparison) verdict() error {
	if c.items == 0 {
		return nil
	}
	unread := c.unread()
	var lacking, some, missing []string
	for _, r := range c.contract.readers {
		var none []string
		for _, name := range r.required {
			switch n := c.has[name]; {
			case n == 0:
				none = append(none, name)
				if !slices.Contains(missing, name) {
					missing = append(missing, name)
				}
			case n < c.items:
				some = append(some, fmt.Sprintf("%s requires %s, which %d of the first %d items lack", r.endpoint,
					quoted([]string{name}), c.items-n, c.items))
			}
		}
		if len(none) > 0 {
			lacking = append(lacking, fmt.Sprintf("%s requires %s, which no row has", r.endpoint, quoted(none)))
		}
	}
	if len(unread) > 0 {
		lacking = append(lacking, "nothing reads "+quoted(unread))
	}
	if len(missing) > 0 && !c.contract.warn {
		return apicore.BadInput(strings.Join(lacking, "; ") + ". Nothing was stored. " + remedy(missing, unread))
	}
	c.Warnings = slices.Concat(c.contract.without, lacking, some)
	return nil
}

func (c *Comparison) unread() (names []string) {
	if !c.contract.all {
		return nil
	}
	for _, name := range c.names {
		reads := func(r reader) bool { return r.reads[name] != nil }
		if !c.contract.also[name] && name != c.key() && !slices.ContainsFunc(c.contract.readers, reads) {
			names = append(names, name)
		}
	}
	return names
}

func remedy(missing, unread []string) string {
	rename := "Rename or add the columns"
	if len(missing) == 1 && len(unread) == 1 {
		rename = fmt.Sprintf("Rename it: --rename %s=%s", unread[0], missing[0])
	}
	return rename + "; or start anyway: --contract warn"
}

func quoted(names []string) string {
	var all []string
	for _, name := range names[:min(len(names), maxNamedFields)] {
		all = append(all, "`"+apicore.Echo(name)+"`")
	}
	if more := len(names) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}
