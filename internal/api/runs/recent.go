package runs

import (
	"context"
	"errors"
	"sync"
	"time"
)

// timelineAge is how old a timeline may be: every page that shows a run asks for it again and again.
const timelineAge = 2 * time.Second

// recent makes something once for all who ask for it within a while.
type recent[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]*made[V]
}

// made is something that is there, or is being made by who asked first.
type made[V any] struct {
	ready chan struct{} // closed when it is there
	value V
	err   error
}

var errUnmade = errors.New("it was not made to its end")

// get returns what was made no longer than age ago, or makes it. What went wrong for somebody else is tried again.
func (r *recent[K, V]) get(ctx context.Context, key K, age time.Duration, build func() (V, error)) (V, error) {
	for {
		m, mine := r.find(key)
		if mine {
			return r.make(key, m, age, build)
		}
		select {
		case <-m.ready:
			if m.err == nil {
				return m.value, nil
			}
		case <-ctx.Done():
			var none V
			return none, context.Cause(ctx)
		}
	}
}

// make lets nobody wait for what a panic has ended.
func (r *recent[K, V]) make(key K, m *made[V], age time.Duration, build func() (V, error)) (V, error) {
	m.err = errUnmade
	defer func() { r.keep(key, m, age) }()
	m.value, m.err = build()
	return m.value, m.err
}

func (r *recent[K, V]) find(key K) (m *made[V], mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.all[key]; m != nil {
		return m, false
	}
	if r.all == nil {
		r.all = map[K]*made[V]{}
	}
	m = &made[V]{ready: make(chan struct{})}
	r.all[key] = m
	return m, true
}

// keep lets the others have what was made, for a while; what failed is forgotten at once.
func (r *recent[K, V]) keep(key K, m *made[V], age time.Duration) {
	if m.err != nil {
		r.forget(key)
	} else {
		time.AfterFunc(age, func() { r.forget(key) })
	}
	close(m.ready)
}

func (r *recent[K, V]) forget(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}
