package browsertest_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"

	"github.com/tranchehq/tranche/workqueue"
)

// What a map of a million items may take.
const (
	firstPaintWithin = time.Second
	frameWithin      = 50 * time.Millisecond
	memoryWithin     = 200 << 20
	tries            = 3 // the machine may be busy with something else meanwhile
)

// million opens the map of a million items, moves it and zooms into it while items change, and measures.
func million(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		s := newStack(t, stackConfig{})
		run := s.synthetic(1_000_000)
		p := b.open(t, s.url)
		painted := func() time.Duration {
			p.visit("/runs/" + run.String())
			ms := eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 1e9`)
			return time.Duration(ms * float64(time.Millisecond))
		}
		paint := painted()
		for n := 1; paint > firstPaintWithin && n < tries; n++ {
			paint = min(paint, painted())
		}
		if paint > firstPaintWithin {
			t.Errorf("the first paint took %s", paint)
		}
		p.until("the whole map is drawn", `document.querySelector('`+at("legend-5")+`')?.
			innerText.replace(/\D/g, "") > 500000 &&
		!document.querySelector(".map-loading")`)
		loaded := eval[float64](p, `performance.now()`)

		stop := s.keep(func(ctx context.Context) error { return s.flicker(ctx, run) })
		var worst time.Duration
		for n := range tries {
			worst = p.frames(func() {
				p.click("mode-select")
				for _, in := range []float64{-300, -300, -300, 300, -400, -400, 500, 500} {
					p.wheel(0.4, 0.6, in)
				}
				p.click("zoom-in")
				p.click("mode-move")
				p.drag(0.8, 0.6, 0.2, 0.3)
				p.drag(0.2, 0.3, 0.7, 0.7)
				p.click("zoom-fit")
				p.click("mode-select")
				p.drag(0.1, 0.2, 0.6, 0.8)
			})
			if worst <= frameWithin {
				break
			}
			t.Logf("try %d: 95 of 100 frames took up to %s", n+1, worst)
		}
		stop()
		if worst > frameWithin {
			t.Errorf("95 of 100 frames took up to %s", worst)
		}
		p.has("selection")
		memory := p.memory()
		if memory > memoryWithin {
			t.Errorf("the page takes %d MiB", memory>>20)
		}
		t.Logf("first paint %s, whole map %.0f ms, 95 of 100 frames within %s, memory %d MiB", paint.Round(time.Millisecond),
			loaded, worst.Round(time.Millisecond), memory>>20)
	}
}

// synthetic makes a paused run of so many items, half of them done, without doing the work. The first and the last
// items are there.
func (s *stack) synthetic(items int) workqueue.RunID {
	s.Helper()
	const size = 8192
	run := workqueue.NewRunID()
	blocks := (items + size - 1) / size
	for _, sql := range []string{
		`INSERT INTO batchrun (id, name, plan, spec, state, items, started_at, sealed_at, hold, held_at)
			VALUES ($1, 'a million', 'p', '{"steps":[]}', 'running', $2, now(), now(), 'operator', now())`,
		`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, slice_timeout,
				retry_backoff)
			SELECT $1, 0, 'only', 'endpoint', 'nobody', 500, 8, 3, '1 minute', '1 second'`,
		`INSERT INTO work_block (run_id, step, block, size, ready, done, failed)
			SELECT $1, 0, n, s, CASE WHEN n % 4 = 3 THEN full_ ELSE B'0'::bit(8192) END,
				CASE WHEN n % 4 <> 3 THEN full_ & ~few ELSE B'0'::bit(8192) END,
				CASE WHEN n % 4 <> 3 THEN full_ & few ELSE B'0'::bit(8192) END
			FROM (SELECT n, least(8192, $2::int - n * 8192) AS s,
				(~B'0'::bit(8192)) << (8192 - least(8192, $2::int - n * 8192)) AS full_,
				repeat(repeat('0', n % 97 + 30) || '1', 8192)::bit(8192) AS few
			FROM generate_series(0, ceil($2::int / 8192.0)::int - 1) n) b`,
		`INSERT INTO work_queue (run_id, ordinal, item_key, payload)
			SELECT $1, n, 'C' || n, '{}' FROM generate_series(0, $2::int - 1) n WHERE n < 8192 OR n >= $2::int - 8192`,
	} {
		args := []any{run, items}
		if !strings.Contains(sql, "$2") {
			args = args[:1]
		}
		if _, err := s.pool.Exec(s.Context(), sql, args...); err != nil {
			s.Fatalf("%v\n%s", err, sql)
		}
	}
	if n := s.number(`SELECT count(*) FROM work_block WHERE run_id = $1`, run); n != blocks {
		s.Fatalf("%d blocks", n)
	}
	return run
}

// flicker has items become done, some thousand a second, until it is told to stop.
func (s *stack) flicker(ctx context.Context, run workqueue.RunID) error {
	for n := 0; ; n++ {
		_, err := s.pool.Exec(ctx, `UPDATE work_block SET ready = ready & ~m, done = done | (ready & m)
			FROM (SELECT (repeat('1', 100)::bit(8192)) >> ($2::int * 100 % 8000) AS m) m
			WHERE run_id = $1 AND block % 4 = 3`, run, n)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// frames returns how long 95 of 100 frames took at the most, while something is done.
func (p *page) frames(during func()) time.Duration {
	p.Helper()
	p.run(`(() => { const took = window.__frames = []; let last = 0;
		const next = (at) => { if (last) took.push(at - last); last = at; window.__timer = requestAnimationFrame(next); };
		window.__timer = requestAnimationFrame(next); })()`)
	during()
	took := eval[[]float64](p, `(cancelAnimationFrame(window.__timer), window.__frames)`)
	if len(took) < 30 {
		p.Fatalf("only %d frames", len(took))
	}
	slices.Sort(took)
	at := took[int(math.Ceil(float64(len(took))*0.95))-1]
	p.Logf("%d frames: median %.0f ms, 95 of 100 within %.0f ms, the slowest %.0f ms",
		len(took), took[len(took)/2], at, took[len(took)-1])
	return time.Duration(at * float64(time.Millisecond))
}

// memory returns what the page holds: its heap, what its elements take, and its buffers.
func (p *page) memory() int64 {
	p.Helper()
	command(p, heapprofiler.CollectGarbage, cdp.Empty{})
	use := command(p, runtime.GetHeapUsage, cdp.Empty{})
	return int64(use.UsedSize + use.EmbedderHeapUsedSize + use.BackingStorageSize)
}
