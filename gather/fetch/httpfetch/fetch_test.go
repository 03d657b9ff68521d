package httpfetch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func TestEachItem(t *testing.T) {
	t.Parallel()
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = fmt.Fprintf(w, `{"path":%q,"query":%q,"body":%q,"auth":%t}`, r.URL.EscapedPath(), r.URL.RawQuery, body,
			r.Header.Get("X-Token") == "Bearer "+canary)
	})
	h := settings(b.server.URL+"/b/{key}{?year}&n={item.n}&s={parts.one-more.a.1}", func(h *gather.HTTP) {
		h.Method = "POST"
		h.Headers = map[string]string{"X-Token": "Bearer {secret.token}", "Idempotency-Key": "{run}-{key}-{generation}"}
		h.Body = gather.JSON(`{"id":"{key}","all":"{item}","n":"{item.n}","text":"n={item.n} {{",` +
			`"list":[true,null,"{ordinal}"]}`)
	})
	req := &fetch.Request{Run: uuid.New(), Step: "s", Generation: 3, Params: map[string]string{"year": "20 26"},
		Items: []fetch.Item{{Ordinal: 7, Key: `a/b?c#d&e%"`, Payload: []byte(`{"n":1.50}`),
			Parts: map[string]fetch.Part{"one-more": {Data: []byte(`{"a":[1,"zwei & drei"]}`)}}}}}
	slots := testenv.Must(get(t, b.client, h, req))(t)
	testenv.MustSame(t, slots[7].Err, nil, "%+v", slots)
	const want = `{"path":"/b/a%2Fb%3Fc%23d%26e%25%22","query":"year=20%2026&n=1.50&s=zwei%20%26%20drei",` +
		`"body":"{\"all\":{\"n\":1.50},\"id\":\"a/b?c#d\\u0026e%\\\"\",\"list\":[true,null,7],\"n\":1.50,` +
		`\"text\":\"n=1.50 {\"}",` +
		`"auth":true}`
	if got := string(slots[7].Data); got != want || slots[7].ContentType != "" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	testenv.Same(t, b.requests()[0].Header.Get("Idempotency-Key"), req.Run.String()+`-a/b?c#d&e%"-3`,
		"the idempotency key")
}

func TestWhatItemsGet(t *testing.T) {
	t.Parallel()
	const leak = "you sent " // and what was sent
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		kind, body := "application/json", `{"a":{"b":[1,2]}}`
		status := 200
		switch r.URL.Path {
		case "/binary":
			kind, body = "image/png; x=1", "\x89PNG"
		case "/none":
			kind, body = "", "\x00\x01"
		case "/silent":
			kind, body = "", ` {"x": 1}`
		case "/empty":
			status, body = 204, ""
		case "/garbage":
			body = `{"a":`
		case "/badkind":
			kind = "nonsense"
		case "/twice":
			body = `{"a":{"b":1,"b":[1,2]}}`
		case "/surrogate":
			body = `{"a":"\ud83d"}`
		case "/deep":
			body = `{"a":` + strings.Repeat("[", 129) + strings.Repeat("]", 129) + `,"c":1}`
		case "/latin":
			kind, body = "application/json; charset=iso-8859-1", "{\"a\":\"M\xfcller\"}"
		case "/ascii":
			kind = "application/json; charset=iso-8859-1"
		case "/notutf8":
			body = "{\"a\":\"M\xfcller\"}"
		case "/mark":
			body = "\uFEFF" + body
		case "/gzip", "/shortgzip":
			w.Header().Set("Content-Encoding", "gzip")
			if r.URL.Path == "/shortgzip" {
				body = "{}"
			}
		case "/br", "/identity":
			w.Header().Set("Content-Encoding", strings.TrimPrefix(r.URL.Path, "/"))
		case "/huge":
			body = strings.Repeat("x", 2<<20)
		case "/short":
			w.Header().Set("Content-Length", "1000")
		case "/hang":
			<-r.Context().Done()
			return
		default:
			if _, err := fmt.Sscanf(r.URL.Path, "/%d", &status); err != nil {
				break
			}
			kind, body = "text/plain", leak+r.Header.Get("X-Token")+"\n\x1b[31m"+strings.Repeat("y", 500)
		}
		w.Header()["Content-Type"] = nil
		if kind != "" {
			w.Header().Set("Content-Type", kind)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	for path, want := range map[string]string{
		"/ok": `{"a":{"b":[1,2]}}`, "/ok#/a/b/1": "2", "/ok#/a/c": "bad_response", "/binary": "image/png; x=1 \x89PNG",
		"/binary#/a": "bad_response", "/none": "application/octet-stream \x00\x01", "/silent": ` {"x": 1}`, "/empty": "null",
		"/twice": "duplicate_name", "/twice#/c": "duplicate_name", "/surrogate": "lone_surrogate",
		"/deep": "nested_too_deep", "/deep#/c": "1",
		"/latin": "unsupported_charset", "/ascii": `{"a":{"b":[1,2]}}`, "/notutf8": "not_utf8", "/mark": "byte_order_mark",
		"/gzip": "bad_compression", "/shortgzip": "bad_compression!",
		"/br": "bad_compression", "/identity": `{"a":{"b":[1,2]}}`,
		"/garbage": "bad_response", "/badkind": "bad_response", "/huge": "result_too_large", "/short": "unreachable!",
		"/hang": "timeout!", "/400": "bad_request", "/401": "unauthorized", "/403": "forbidden", "/404": "not_found",
		"/409": "conflict", "/410": "gone", "/418": "http_418", "/422": "bad_request", "/429": "too_many_requests!",
		"/500": "server_error!", "/501": "http_501", "/502": "unavailable!", "/503": "unavailable!", "/504": "unavailable!",
		"/304": "redirect_refused",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			path, pointer, _ := strings.Cut(path, "#")
			h := settings(b.server.URL+path+"?k={key}", func(h *gather.HTTP) {
				h.Response.Value = pointer
				h.Headers = map[string]string{"X-Token": "{secret.token}"}
				if path == "/hang" {
					h.Timeout = workqueue.Duration(50 * time.Millisecond)
				}
			})
			slots, err := get(t, b.client, h, &fetch.Request{Items: items(1)})
			slot := slots[100]
			got := strings.TrimPrefix(slot.ContentType+" "+string(slot.Data), " ")
			if slot.ContentType == "" {
				got = string(slot.Data)
			}
			if slot.Err != nil {
				got, err = codeOf(slot.Err), slot.Err
			} else if err != nil {
				got = codeOf(err)
			}
			testenv.Same(t, got, want, "got, %v", err)
			if err != nil && (len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x1b")) {
				t.Errorf("the message is %q", err)
			}
			if strings.HasPrefix(path, "/4") && !strings.Contains(err.Error(), leak+"[secret token]") {
				t.Errorf("what the service said is not quoted: %v", err)
			}
		})
	}
}

// Values that would make another request of it are refused, before anything is sent.
func TestHostileItems(t *testing.T) {
	t.Parallel()
	b := serve(t, func(http.ResponseWriter, *http.Request) {})
	long := strings.Repeat("x", 9<<10)
	for name, test := range map[string]struct {
		key, payload, header, want string
	}{
		"climbs":           {key: "..", want: "missing_value"},
		"climbs escaped":   {key: "%2e%2e", want: "missing_value"},
		"climbs by slash":  {key: "../../admin", want: "missing_value"},
		"climbs backwards": {key: `..\admin`, want: "missing_value"},
		"climbs, Tomcat":   {key: "..;x=1", want: "missing_value"},
		"empty":            {key: "", want: "missing_value"},
		"missing":          {key: "k", payload: `{"n":null}`, want: "missing_value"},
		"object":           {key: "k", payload: `{"n":{"a":1}}`, want: "missing_value"},
		"broken":           {key: "k", payload: `{`, want: "missing_value"},
		"line break":       {key: "k", payload: `{"n":"a\r\nX-Evil: 1"}`, header: "{item.n}", want: "bad_header"},
		"NUL":              {key: "k", payload: `{"n":"a\u0000"}`, header: "{item.n}", want: "bad_header"},
		"long header":      {key: "k", payload: `{"n":"` + long + `"}`, header: "{item.n}", want: "url_too_long"},
		"braces":           {key: "{secret.token}", header: "{key}", want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := settings(b.server.URL+"/b/{key}?n={item.n}", func(h *gather.HTTP) {
				if test.header != "" {
					h.Headers = map[string]string{"X-It": test.header}
				}
			})
			if test.payload == "" {
				test.payload = `{"n":1}`
			}
			slots := testenv.Must(get(t, b.client, h, &fetch.Request{Items: []fetch.Item{
				{Ordinal: 1, Key: test.key, Payload: []byte(test.payload)}}}))(t)
			testenv.Same(t, codeOf(slots[1].Err), test.want, "got %+v", slots[1].Err)
		})
	}
	t.Cleanup(func() {
		for _, r := range b.requests() { // the one of the braces
			if r.Header.Get("X-It") != "{secret.token}" || r.URL.Path != "/b/{secret.token}" || len(b.requests()) != 1 {
				t.Errorf("the service was asked %s %v", r.URL, r.Header)
			}
		}
	})
}

// Chunks that get nothing from a service fail entirely, and do not knock for each item.
func TestServiceIsDown(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1"
	var asked atomic.Int64
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if n > 10 || r.URL.Path == "/all" {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	slots, err := get(t, b.client, settings(nobody+"/{key}"), &fetch.Request{Items: items(100)})
	if len(slots) != 0 || codeOf(err) != "unreachable!" {
		t.Errorf("no one: %d slots, %v", len(slots), err)
	}
	slots, err = get(t, b.client, settings(b.server.URL+"/{key}"), &fetch.Request{Items: items(100)})
	// Up to three of those that went well may have been in progress at the end; or they are late, and each of them comes
	// after three in a row that did not. Four in a row are the end, with three others in progress.
	if len(slots) < 7 || len(slots) > 10 || codeOf(err) != "unavailable!" || asked.Load() > 10+3*3+4+3 {
		t.Errorf("went down: %d slots, %v, asked %d times", len(slots), err, asked.Load())
	}
	for _, s := range slots {
		testenv.Same(t, s.Err, nil, "slot")
	}
	slots, err = get(t, b.client, settings(b.server.URL+"/all?{&key}"), &fetch.Request{Items: items(2)})
	if len(slots) != 0 || codeOf(err) != "unavailable!" {
		t.Errorf("small chunk: %d slots, %v", len(slots), err)
	}
}

// Now and then is not an outage: those items have errors of their own.
func TestServiceStumbles(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	b := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%3 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	slots, err := get(t, b.client, settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.Concurrency = 1 }),
		&fetch.Request{Items: items(9)})
	bad := 0
	for _, s := range slots {
		if codeOf(s.Err) == "unavailable!" {
			bad++
		}
	}
	if err != nil || len(slots) != 9 || bad != 3 {
		t.Errorf("%d slots, %d bad, %v", len(slots), bad, err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	after := func(text string) *bundle {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1); text == "date" {
				w.Header().Set("Date", "Sat, 21 Nov 2026 22:00:00 GMT")
				w.Header().Set("Retry-After", "Sat, 21 Nov 2026 22:01:30 GMT")
			} else {
				w.Header().Set("Retry-After", text)
			}
			w.WriteHeader(http.StatusTooManyRequests)
		})
	}
	for text, want := range map[string]time.Duration{
		"60": time.Minute, "date": 90 * time.Second, "99999999": 5 * time.Minute,
		"99999999999999999999": 5 * time.Minute,
	} {
		b := after(text)
		asked.Store(0)
		begun := time.Now()
		h := settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.Concurrency = 1 })
		slots, err := get(t, b.client, h, &fetch.Request{Items: items(50), Rate: 1})
		if err != nil || len(slots) != 50 || codeOf(slots[149].Err) != "too_many_requests!" || asked.Load() != 1 {
			t.Errorf("%s: %d slots, last %+v, %v, asked %d times", text, len(slots), slots[149].Err, err, asked.Load())
		}
		until := b.client.RestsUntil("http:" + b.host) // counted from the answer
		if until.Sub(begun) < want || time.Until(until) > want {
			t.Errorf("%s: rests for %v, want %v", text, time.Until(until), want)
		}
	}
}

// A short rest is waited for, and costs no item anything; nor does one that is over before the answer is.
func TestShortRest(t *testing.T) {
	t.Parallel()
	for name, answering := range map[string]time.Duration{"waited for": 0, "over": 1200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			b := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) == 3 {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusServiceUnavailable)
					_ = http.NewResponseController(w).Flush()
					<-time.After(answering)
				}
			})
			h := settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.Concurrency = 1 })
			slots, err := get(t, b.client, h, &fetch.Request{Items: items(5)})
			for _, s := range slots {
				testenv.Same(t, s.Err, nil, "")
			}
			if err != nil || len(slots) != 5 || asked.Load() != 6 {
				t.Errorf("%d slots, %v, asked %d times", len(slots), err, asked.Load())
			}
		})
	}
}

func TestConcurrencyAndRate(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	b := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if r.URL.Path == "/wait" {
			if n == 3 {
				release()
			}
			<-released
		}
	})
	run := uuid.New()
	h := settings(b.server.URL+"/wait?k={key}", func(h *gather.HTTP) { h.Concurrency = 3 })
	done := make(chan error, 2)
	for range 2 { // chunks of one step share what it may do concurrently
		go func() {
			_, err := get(t, b.client, h, &fetch.Request{Run: run, Step: "s", Items: items(6)})
			done <- err
		}()
	}
	testenv.NoError(t, errors.Join(<-done, <-done))
	testenv.Same(t, most.Load(), 3, "concurrently")
	begun := time.Now()
	_, err := get(t, b.client, settings(b.server.URL+"/{key}"), &fetch.Request{Items: items(21), Rate: 100})
	testenv.NoError(t, err)
	if took := time.Since(begun); took < 190*time.Millisecond {
		t.Errorf("21 requests at 100 a second took %v", took)
	}
}

// When the node stops, what came stays, and nothing is held against the rest.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/K2" {
			cancel()
			<-r.Context().Done()
		}
	})
	slots, err := getIn(ctx, t, b.client, settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.Concurrency = 1 }),
		&fetch.Request{Items: items(9)})
	if len(slots) != 2 || slots[100].Err != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%d slots, %v", len(slots), err)
	}
}

func TestMany(t *testing.T) {
	t.Parallel()
	var query atomic.Value
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		query.Store(r.URL.RawQuery + " " + string(body))
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/list":
			_, _ = io.WriteString(w, `{"data":[{"id":"K0","v":{"x":1}},{"id":"K2","v":null},{"id":"K9","v":1},{"id":"K3"},
				{"id":"K4","v":1},{"id":"K4","v":2}]}`)
		case "/object":
			_, _ = io.WriteString(w, `{"K0":{"v":1},"K1":{"v":2}}`)
		case "/nokey":
			_, _ = io.WriteString(w, `{"data":[{"nr":1}]}`)
		case "/none":
			_, _ = io.WriteString(w, `{"data":null}`)
		case "/flawed":
			_, _ = io.WriteString(w, `{"data":[{"id":"K0","v":{"x":1,"x":2}},{"id":"K1","v":"\ud83d"},{"id":"K2","v":"`+"\xfc"+
				`"},{"id":"K3","v":`+strings.Repeat("[", 129)+strings.Repeat("]", 129)+
				`},{"id":"K4","v":1,"v":2},{"id":"K5","v":5}]}`)
		case "/twice":
			_, _ = io.WriteString(w, `{"K0":{"v":1},"K0":{"v":2},"K1":{"v":2}}`)
		case "/gone":
			w.WriteHeader(http.StatusNotFound)
		}
	})
	ask := func(path string, n int, response gather.HTTPResponse) (map[int]fetch.Slot, error) {
		return get(t, b.client, settings(b.server.URL+path, func(h *gather.HTTP) {
			h.WholeChunk, h.Response, h.Method = true, response, "POST"
			h.Body = gather.JSON(`{"ids":"{keys}","of":"{items}"}`)
		}), &fetch.Request{Items: items(n)})
	}
	slots := testenv.Must(ask("/list{?keys}", 5, gather.HTTPResponse{Items: "/data", Key: "/id", Value: "/v"}))(t)
	testenv.MustSame(t, len(slots), 5, "%+v", slots)
	if got := query.Load(); got != `keys=K0,K1,K2,K3,K4 {"ids":["K0","K1","K2","K3","K4"],`+
		`"of":[{"n":0},{"n":1},{"n":2},{"n":3},{"n":4}]}` {
		t.Errorf("asked %s", got)
	}
	for i, want := range []string{`{"x":1}`, "not_found", "null", "bad_response", "bad_response"} {
		if slot := slots[100+i]; string(slot.Data) != want && codeOf(slot.Err) != want {
			t.Errorf("item %d: %s %v, want %s", i, slot.Data, slot.Err, want)
		}
	}
	slots, err := ask("/object", 2, gather.HTTPResponse{Value: "/v"})
	if err != nil || string(slots[100].Data) != "1" || string(slots[101].Data) != "2" {
		t.Errorf("object: %+v, %v", slots, err)
	}
	// What is wrong with a result costs its item alone.
	slots, err = ask("/flawed", 6, gather.HTTPResponse{Items: "/data", Key: "/id", Value: "/v"})
	for i, want := range []string{"duplicate_name", "lone_surrogate", "not_utf8", "nested_too_deep", "bad_response", "5"} {
		if slot := slots[100+i]; err != nil || string(slot.Data) != want && codeOf(slot.Err) != want {
			t.Errorf("item %d: %s %v (%v), want %s", i, slot.Data, slot.Err, err, want)
		}
	}
	slots, err = ask("/twice", 2, gather.HTTPResponse{Value: "/v"})
	if err != nil || codeOf(slots[100].Err) != "bad_response" || string(slots[101].Data) != "2" {
		t.Errorf("a key twice: %+v, %v", slots, err)
	}
	for path, want := range map[string]string{"/nokey": "bad_response", "/none": "bad_response"} {
		slots, err = ask(path, 2, gather.HTTPResponse{Items: "/data", Key: "/id"})
		if err != nil || len(slots) != 2 || codeOf(slots[101].Err) != want {
			t.Errorf("%s: %+v, %v", path, slots, err)
		}
	}
	// What a smaller chunk may fix is the chunk's error.
	if slots, err = ask("/gone", 2, gather.HTTPResponse{}); len(slots) != 0 || codeOf(err) != "not_found" {
		t.Errorf("gone: %+v, %v", slots, err)
	}
	if slots, err = ask("/list{?keys*}", 2000, gather.HTTPResponse{}); len(slots) != 0 || codeOf(err) != "url_too_long" {
		t.Errorf("long: %+v, %v", slots, err)
	}
}

// What the host took is told, without what the step waits for: here its rate.
func TestWhatTheHostTook(t *testing.T) {
	t.Parallel()
	b := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	into := &sink{}
	began := time.Now()
	req := (&fetch.Request{Items: items(5), Rate: 2}).WithSink(into)
	one := settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.Concurrency = 1 })
	testenv.Must(get(t, b.client, one, req))(t)
	worked, all := time.Duration(into.worked.Load()), time.Since(began)
	if into.taken.Load() != 5 || worked <= 0 || worked > all/2 {
		t.Errorf("it took %s of %s, nearly all of which was waiting for the rate", worked, all)
	}
}

type sink struct{ taken, worked atomic.Int64 }

func (s *sink) Begin(int)                 {}
func (s *sink) Worked(took time.Duration) { s.worked.Add(int64(took)) }
func (s *sink) Take(fetch.Slot)           { s.taken.Add(1) }

// Results are handed on while others are at work; without anybody to take them a chunk does not pile them up.
func TestLargeResults(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 16<<20)
	b := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) })
	h := settings(b.server.URL+"/{key}", func(h *gather.HTTP) { h.MaxBytes = 16 << 20; h.Concurrency = 1 })
	into := &sink{}
	slots, err := get(t, b.client, h, (&fetch.Request{Items: items(2)}).WithSink(into))
	if err != nil || len(slots) != 0 || into.taken.Load() != 2 {
		t.Errorf("%d slots, %d taken, %v", len(slots), into.taken.Load(), err)
	}
	slots, err = get(t, b.client, h, &fetch.Request{Items: items(7)})
	if codeOf(err) != wire.CodeHeldTooLarge || len(slots) != 5 {
		t.Errorf("%d slots, %v", len(slots), err)
	}
}

func TestBadSteps(t *testing.T) {
	t.Parallel()
	c := client(t, httpfetch.Config{}, `secrets: {token: {file: token, hosts: [api.example]}}`)
	withSecret := func(name string) func(*gather.HTTP) {
		return func(h *gather.HTTP) { h.Headers = map[string]string{"X": "{secret." + name + "}"} }
	}
	for url, test := range map[string]struct {
		change func(*gather.HTTP)
		want   string
	}{
		"https://api.example/":      {withSecret("other"), `no_secret: this node knows no secret "other"; there are token`},
		"http://api.example/":       {withSecret("token"), `secret "token" is not meant for http://api.example`},
		"https://evil.example/":     {withSecret("token"), `secret "token" is not meant for https://evil.example`},
		"https://api.example:8443/": {withSecret("token"), `is not meant for https://api.example:8443`},
		"https://api.example/{+x}":  {func(*gather.HTTP) {}, "bad_step: "},
	} {
		_, err := get(t, c, settings(url, test.change), &fetch.Request{Items: items(1)})
		testenv.Says(t, err, test.want, "%s", url)
	}
	_, err := c.Fetcher([]byte(`{"url":7}`))
	testenv.Same(t, codeOf(err), "bad_step", "broken: %v", err)
}
