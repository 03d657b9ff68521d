package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// specAge is how long a collector's definition is cached. The store refuses an add for another version, which is then
// retried.
const specAge = time.Second

const maxSpecs = 1000

type knownSpec struct {
	spec    collector.CollectorSpec
	version int

	namespace string
	body      *template.Body // of its enrichment; nil: none
	at        time.Time
}

func (p *Producers) spec(ctx context.Context, name string) (knownSpec, error) {
	p.mu.Lock()
	known, ok := p.specs[name]
	p.mu.Unlock()
	if ok && time.Since(known.at) < specAge && workqueue.Sees(ctx, known.namespace) {
		return known, nil
	}
	at := time.Now()
	spec, version, namespace, err := p.definitions.CollectorSpecOf(ctx, name)
	if err == nil && !workqueue.Sees(ctx, namespace) {
		err = fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	if err != nil {
		return knownSpec{}, err
	}
	known = knownSpec{spec: spec, version: version, namespace: namespace, at: at}
	if spec.Enrich != nil {
		if known.body, err = bodyOf(spec.Enrich); err != nil {
			return knownSpec{}, fmt.Errorf("read what collector %s stores: %w", name, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.specs) >= maxSpecs {
		clear(p.specs)
	}
	p.specs[name] = known
	return known, nil
}

// forget drops a cached definition, unless it was already replaced.
func (p *Producers) forget(name string, version int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.specs[name].version == version {
		delete(p.specs, name)
	}
}

func (p *Producers) changed(ctx context.Context, name string, version int) bool {
	p.forget(name, version)
	newest, err := p.spec(ctx, name)
	return err == nil && newest.version != version
}

func withKeys(spec *collector.CollectorSpec, ops []collector.Op) ([]collector.Op, error) {
	ops = slices.Clone(ops) // a retry may set other keys
	for i := range ops {
		op := &ops[i]
		key, badKey := Key(spec, op.Key, op.Payload)
		fold, badFold := Fold(spec, op.Key, op.Payload)
		if err := cmp.Or(checkOp(spec, op), badKey, badFold); err != nil {
			return nil, ofOp(i, err)
		}
		op.Key, op.Fold = key, fold
	}
	return ops, nil
}

// ofOp adds to an *OpError which operation it is of.
func ofOp(i int, err error) error {
	if bad, ok := errors.AsType[*OpError](err); ok {
		bad.Number = i + 1
	}
	return err
}

// checkOp checks what Key, Fold and Read do not.
func checkOp(spec *collector.CollectorSpec, op *collector.Op) error {
	switch {
	case len(op.ID) > collector.MaxOpID:
		return &OpError{Field: "id", Problem: fmt.Sprintf("it has %d bytes, and at most %d are allowed", len(op.ID),
			collector.MaxOpID)}
	case !isText(op.ID):
		return &OpError{Field: "id", Problem: "it must be UTF-8 without NUL"}
	case ownKey(spec) && op.Key == "":
		return &OpError{Field: "key", Problem: "it is missing; say what the operation belongs to, like a customer's id, or " +
			"give the collector an order_by"}
	case !ownKey(spec) && op.Key != "":
		return &OpError{Field: "key", Problem: fmt.Sprintf("the collector makes it of the payload's %s; leave it out",
			spec.OrderBy.Field)}
	}
	return nil
}
