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

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// What a map of a million items may take, on a machine that is not too slow for it.
const (
	firstPaintWithin = time.Second
	frameWithin      = 50 * time.Millisecond
	memoryWithin     = 200 << 20
	tries            = 10 // the machine may be busy with something else meanwhile
	rounds           = 3  // over what does not change
	leastFrames      = 30

	// On a slow machine they may take so many times as long as a loop, and as the frames of an empty page.
	firstPaintInLoops = 10
	framesInEmptyOnes = 3
)

// million opens the map of a million items, moves it and zooms into it while items change, and measures.
func million(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		s := newStack(t, stackConfig{})
		run := s.synthetic(1_000_000)
		within := b.frameLimit(s)
		p := b.open(t, s.url)
		paint := p.firstPaint("/runs/" + run.String())
		p.until("the whole map is drawn", `document.querySelector('`+at("legend-5")+`')?.
			innerText.replace(/\D/g, "") > 500000 &&
		!document.querySelector(".map-loading")`)
		loaded := eval[float64](p, `performance.now()`)

		stop := s.keep(func(ctx context.Context) error { return s.flicker(ctx, run) })
		worst := p.smooth(within)
		stop()
		p.has("selection")
		memory := p.memory()
		if memory > memoryWithin {
			t.Errorf("the page takes %d MiB", memory>>20)
		}
		t.Logf("first paint %s, whole map %.0f ms, 95 of 100 frames within %s, memory %d MiB", paint.Round(time.Millisecond),
			loaded, worst.Round(time.Millisecond), memory>>20)
	}
}

// firstPaint opens a page and returns how long its first paint took, which must not be too long.
func (p *page) firstPaint(path string) (took time.Duration) {
	p.Helper()
	for range tries {
		p.visit(path)
		took = eval[millis](p, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 1e9`).duration()
		within := max(firstPaintWithin, firstPaintInLoops*p.loop())
		if took <= within {
			return took
		}
		p.Logf("the first paint took %s; %s would do", took, within)
	}
	p.Errorf("the first paint took %s", took)
	return took
}

// millis is a time as scripts have it.
type millis float64

func (ms millis) duration() time.Duration {
	return time.Duration(float64(ms) * float64(time.Millisecond))
}

// loop returns how long the page's machine takes for a piece of work that is always the same.
func (p *page) loop() time.Duration {
	p.Helper()
	return eval[millis](p, `(() => {
		const times = [1, 2, 3].map(() => {
			const from = performance.now();
			let x = 0;
			for (let i = 0; i < 1e7; i++) x = (x * 31 + i) % 1000003;
			return performance.now() - from + x / 1e9;
		});
		return Math.min(...times); })()`).duration()
}

// frameLimit returns how long frames may take, by what an empty page achieves on which the same is done.
func (b *browser) frameLimit(s *stack) time.Duration {
	s.Helper()
	p := b.open(s.T, s.url)
	p.do("go to an empty page", goTo("about:blank"))
	p.run(`document.body.innerHTML = ["mode-select", "mode-move", "zoom-in", "zoom-fit"].map((name) =>
		"<button data-test=" + name + ">" + name + "</button>").join("") + "<div data-test=map style='height: 500px'></div>"`)
	took, _ := p.frames(func() {
		for range rounds {
			p.gestures()
		}
	})
	return max(frameWithin, framesInEmptyOnes*took)
}

// smooth moves the map and returns how long 95 of 100 frames took at most, which must not be too long.
func (p *page) smooth(within time.Duration) (took time.Duration) {
	p.Helper()
	for range tries {
		var enough bool
		if took, enough = p.frames(p.gestures); enough && took <= within {
			return took
		}
	}
	p.Errorf("in none of %d tries were there %d frames of which 95 of 100 took %s at most", tries, leastFrames, within)
	return took
}

// gestures moves the map, zooms into it and selects a part of it.
func (p *page) gestures() {
	p.Helper()
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
			VALUES ($1, 'a million', 'p', '{"steps":[]}', 'running', $2, tranche_now(),
				tranche_now(), 'operator', tranche_now())`,
		`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
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
		_, err := s.Pool.Exec(s.Context(), sql, args...)
		testenv.MustSame(s, err, nil, "%s", sql)
	}
	testenv.MustSame(s, s.number(`SELECT count(*) FROM work_block WHERE run_id = $1`, run), blocks, "blocks")
	return run
}

// flicker has items become done, some thousand a second, until it is told to stop.
func (s *stack) flicker(ctx context.Context, run workqueue.RunID) error {
	for n := 0; ; n++ {
		_, err := s.Pool.Exec(ctx, `UPDATE work_block SET ready = ready & ~m, done = done | (ready & m)
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

// frames returns how long 95 of 100 frames took at most, while something is done, and whether there were enough.
func (p *page) frames(during func()) (took time.Duration, enough bool) {
	p.Helper()
	p.run(`(() => { const took = window.__frames = []; let last = 0;
		const next = (at) => { if (last) took.push(at - last); last = at; window.__timer = requestAnimationFrame(next); };
		window.__timer = requestAnimationFrame(next); })()`)
	during()
	all := eval[[]millis](p, `(cancelAnimationFrame(window.__timer), window.__frames)`)
	if len(all) < leastFrames {
		p.Logf("only %d frames", len(all))
		return 0, false
	}
	slices.Sort(all)
	at := all[int(math.Ceil(float64(len(all))*0.95))-1]
	p.Logf("%d frames: median %.0f ms, 95 of 100 within %.0f ms, the slowest %.0f ms",
		len(all), all[len(all)/2], at, all[len(all)-1])
	return at.duration(), true
}

// memory returns what the page holds: its heap, what its elements take, and its buffers.
func (p *page) memory() int64 {
	p.Helper()
	command(p, heapprofiler.CollectGarbage, cdp.Empty{})
	use := command(p, runtime.GetHeapUsage, cdp.Empty{})
	return int64(use.UsedSize + use.EmbedderHeapUsedSize + use.BackingStorageSize)
}
