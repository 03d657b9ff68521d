package producers

import (
	"context"
	"time"

	"go.uber.org/zap"

	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// noteTimeout bounds what is noted of a collector beside an add.
const noteTimeout = 5 * time.Second

// noted is what this node said last of what a collector asks for.
type noted struct {
	refused bool
	at      time.Time
}

// note reports whether it is time to say again that a collector's query fails, or works, and whether it failed before.
func (p *Producers) note(name string, refused bool) (now, was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.noted[name]
	if last.refused == refused && time.Since(last.at) < collectorstore.RefusalNoted {
		return false, last.refused
	}
	if len(p.noted) >= maxSpecs {
		clear(p.noted)
	}
	p.noted[name] = noted{refused, time.Now()}
	return true, last.refused
}

// noteRefused tells the log and the store, now and then, that the query of a collector fails.
func (p *Producers) noteRefused(ctx context.Context, name string, problem error) {
	if now, _ := p.note(name, true); !now {
		return
	}
	p.log.Warn("operations are refused: the query of their collector fails", zap.String("collector", name),
		zap.Error(problem))
	p.keep(ctx, func(ctx context.Context) error {
		return p.definitions.NoteRefused(ctx, name, problem.Error())
	})
}

// noteTaken tells the store, now and then, that it works.
func (p *Producers) noteTaken(ctx context.Context, name string) {
	if now, was := p.note(name, false); now {
		p.keep(ctx, func(ctx context.Context) error { return p.definitions.NoteTaken(ctx, name, was) })
	}
}

// keep writes a note, also for somebody who leaves. Without it the add goes on all the same.
func (p *Producers) keep(ctx context.Context, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		p.log.Warn("what health says of a collector is old", zap.Error(err))
	}
}
