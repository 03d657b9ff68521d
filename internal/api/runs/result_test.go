package runs_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// PROOF: who may do what, 8.
// Whatever a service has made, its bytes come as a file to be saved, in which nothing runs.
func TestResultsAreInert(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const page = "<script>alert(1)</script>"
	for name, c := range map[string]struct{ recorded, told, ext string }{
		"html": {"text/html", "application/octet-stream", ".bin"},
		"svg":  {"image/svg+xml", "application/octet-stream", ".bin"},
		"odd":  {"text/html; charset=\"x", "application/octet-stream", ".bin"},
		"text": {"text/plain; charset=utf-7", "text/plain; charset=utf-8", ".txt"},
		"old":  {"text/csv; charset=ISO-8859-1", "text/csv; charset=iso-8859-1", ".csv"},
		"pdf":  {"application/pdf", "application/pdf", ".pdf"},
		"up":   {"IMAGE/PNG", "image/png", ".png"},
	} {
		run := b.Start("name=" + name).Run
		b.Answer(run, c.recorded, func(workqueue.Ordinal) []byte { return []byte(page) })
		answer, text := b.Get("/runs/" + name + "/items/%3D1/result")
		h := answer.Header
		if answer.StatusCode != http.StatusOK || text != page || h.Get("Content-Type") != c.told ||
			h.Get("Content-Disposition") != "attachment; filename=_1"+c.ext ||
			h.Get("Content-Security-Policy") != "default-src 'none'; sandbox" ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" ||
			h.Get("ETag") != fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(page))) {
			t.Errorf("%s: %d %v %s", name, answer.StatusCode, h, text)
		}
	}
	_, text := b.Get("/runs/html/items/~/result?key=%3D1")
	testenv.Same(t, text, page, "with its key in the query")
	tag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(page)))
	answer, text := b.Get("/runs/html/items/2/result", "If-None-Match", tag)
	if answer.StatusCode != http.StatusNotModified || text != "" {
		t.Errorf("known already: %d %q", answer.StatusCode, text)
	}
	answer, text = b.Get("/runs/html/items/2/result", "Range", "bytes=1-6", "If-Range", tag)
	if answer.StatusCode != http.StatusPartialContent || text != "script" {
		t.Errorf("a part of it: %d %q", answer.StatusCode, text)
	}
}

// Items that share a key come page by page.
func TestTwinsComeInPages(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&name=twins&on_duplicate=allow",
		strings.NewReader("id\n"+strings.Repeat("a\n", 2*inspect.MaxTwins)))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	_, first := b.Get("/runs/twins/items/a")
	_, last := b.Get("/runs/twins/items/a?after=99")
	if !strings.Contains(first, `"next":99}`) || strings.Count(first, `"ordinal":`) != inspect.MaxTwins ||
		strings.Contains(last, `"next"`) || !strings.Contains(last, `"ordinal":199,`) {
		t.Errorf("%.200s … %.200s", first, last)
	}
}

func TestResultsThatAreNotThere(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	_, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&name=twins&on_duplicate=allow",
		strings.NewReader("id\na\na\nb\n../x\n"))
	run, err := inspect.New(b.Store).Resolve(t.Context(), "twins")
	testenv.MustSame(t, err, nil, "%s", text)
	at := api.Prefix + "/runs/twins/items/"
	b.Refused(404, "step echo has no result for item", http.MethodGet, at+"b/result", nil)
	b.Answer(run, "", func(o workqueue.Ordinal) []byte {
		if o == 2 {
			return nil
		}
		return fmt.Appendf(nil, `{"o":%d}`, o)
	})
	b.Refused(404, "step echo has no result for item", http.MethodGet, at+"b/result", nil)
	b.Refused(404, "no item has this key", http.MethodGet, at+"c/result", nil)
	b.Refused(404, "no item has this key", http.MethodGet, at+"a/result?ordinal=2", nil)
	b.Refused(422, "name one by its ordinal: 0, 1", http.MethodGet, at+"a/result", nil)
	b.Refused(422, "the run has no step", http.MethodGet, at+"a/result?step=nope", nil)
	answer, body := b.Get("/runs/twins/items/a/result?ordinal=1&step=echo")
	if answer.StatusCode != http.StatusOK || body != `{"o":1}` || answer.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", answer.StatusCode, answer.Header, body)
	}
	if answer, body := b.Get("/runs/twins/items/..%2Fx/result"); answer.StatusCode != http.StatusOK || body != `{"o":3}` ||
		answer.Header.Get("Content-Disposition") != "attachment; filename=___x.json" {
		t.Errorf("%d %v %s", answer.StatusCode, answer.Header, body)
	}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs/twins/reset", strings.NewReader(`{"keys":["a"]}`))
	testenv.MustSame(t, code, http.StatusOK, "%s", text)
	b.Refused(404, "has no result", http.MethodGet, at+"a/result?ordinal=1", nil)
}

// A result that does not fit a message is sent piece by piece by itself, and is a result like others in exports.
func TestLargeResults(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	_, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&name=large", strings.NewReader("id\na\nb\nc\n"))
	run, err := inspect.New(b.Store).Resolve(t.Context(), "large")
	testenv.MustSame(t, err, nil, "%s", text)
	claimed := testenv.Must(dispatch.New(b.Store).Claim(t.Context(), dispatch.ClaimRequest{Session: b.Engine.ID, Run: run,
		MaxSlices: 1, MaxBytes: 1 << 20}))(t)
	testenv.MustSame(t, len(claimed.Slices), 1, "slices")
	s := claimed.Slices[0]
	data := strings.Repeat("0123456789", 3000)
	sum := sha256.Sum256([]byte(data))
	var pieces []export.Piece
	for n := range 3 {
		pieces = append(pieces, export.Piece{Number: n + 1, Data: []byte(data[n*10_000 : (n+1)*10_000]),
			Claim: export.Claim{Slice: s.ID, Endpoint: "echo", Ordinal: 0, Pieces: 3, Bytes: 30_000, SHA256: sum,
				ContentType: "application/pdf"}})
	}
	object := `{"n":1,"t":"` + strings.Repeat("x", 40_000) + `"}`
	whole := sha256.Sum256([]byte(object))
	pieces = append(pieces, export.Piece{Number: 1, Data: []byte(object), Claim: export.Claim{Slice: s.ID,
		Endpoint: "echo", Ordinal: 2, Pieces: 1, Bytes: int64(len(object)), SHA256: whole}})
	taken := testenv.Must(export.New(b.Store).Take(t.Context(), pieces))(t)
	testenv.MustSame(t, taken[2].Standing, export.Complete, "%+v", taken)
	testenv.Must(settle.New(b.Store).Record(t.Context(), []settle.Answer{{Slice: s.ID, Endpoint: "echo", Answered: 3,
		Slots: []settle.Slot{{Ordinal: 0, Result: export.Reference(30_000, sum), ContentType: "application/pdf",
			Large: &settle.Large{ID: taken[2].ID, Bytes: 30_000}}, {Ordinal: 1, Result: []byte(`{"small":1}`)},
			{Ordinal: 2, Result: export.Reference(int64(len(object)), whole),
				Large: &settle.Large{ID: taken[3].ID, Bytes: int64(len(object))}}}}}))(t)
	answer, body := b.Get("/runs/large/items/a/result")
	if body != data || answer.Header.Get("Content-Type") != "application/pdf" ||
		answer.Header.Get("ETag") != fmt.Sprintf(`"%x"`, sum) || answer.Header.Get("Content-Length") != "30000" {
		t.Errorf("%v, %d bytes", answer.Header, len(body))
	}
	answer, body = b.Get("/runs/large/items/a/result", "Range", "bytes=9998-10003")
	if answer.StatusCode != http.StatusPartialContent || body != "890123" {
		t.Errorf("a range over two pieces: %d, %q", answer.StatusCode, body)
	}
	_, body = b.Get("/runs/large/items/a")
	if !strings.Contains(body, `"content_type":"application/pdf","large":true,"size":30000,"sha256":"`+
		fmt.Sprintf("%x", sum)) || strings.Contains(body, `"result":`) || strings.Contains(body, `"result_bytes"`) {
		t.Errorf("the item is %s", body)
	}
	_, body = b.Get("/runs/large/export?format=ndjson")
	lines := strings.Split(body, "\n")
	var line struct {
		Key         string
		ResultBytes []byte `json:"result_bytes"`
		ContentType string `json:"content_type"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || string(line.ResultBytes) != data ||
		line.ContentType != "application/pdf" || line.Key != "a" || len(lines) != 4 ||
		!strings.Contains(lines[1], `"result":{"small":1}`) || !strings.Contains(lines[2], `"result":`+object) {
		t.Errorf("exported as %.200s … (%v), then %s and %.200s", lines[0], err, lines[1], lines[2])
	}
	cell := `"` + strings.ReplaceAll(object, `"`, `""`) + `"`
	if _, body = b.Get("/runs/large/export?format=csv"); !strings.Contains(body, "c,done,"+cell+",") ||
		!strings.Contains(body, "a,done,"+base64.StdEncoding.EncodeToString([]byte(data))+",") {
		t.Errorf("in CSV: %.200s", body)
	}
	_, body = b.Get("/runs/large/export?format=ndjson&flat=true")
	testenv.Has(t, body, `"result.n":1,"result.t":"xx`, "flat")
	_, body = b.Get("/runs/large/export?with=parts")
	if !strings.Contains(body, `"result_bytes":"`+base64.StdEncoding.EncodeToString([]byte(data))+`"`) ||
		!strings.Contains(body, `"parts":{"echo":{"state":"done","result":`+object+`}}`) {
		t.Errorf("with parts: %.200s", body)
	}
	_, body = b.Get("/runs/large/export?format=parquet")
	rows, err := parquet.Read[struct {
		Result *string `parquet:"result,optional"`
		Bytes  []byte  `parquet:"result_bytes,optional"`
	}](strings.NewReader(body), int64(len(body)))
	if err != nil || len(rows) != 3 || *rows[2].Result != object || string(rows[0].Bytes) != data {
		t.Errorf("in Parquet: %d rows, %v", len(rows), err)
	}
	answer, _ = b.Get("/runs/large/export?format=xlsx&flat=true")
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Tranche-Cells-Not-Held") != "2" { // 40,000 characters
		t.Errorf("in a workbook: %v", answer)
	}
	b.Exec(`UPDATE batchrun SET items = 1048576, done = 1048576`)
	b.JSON(http.MethodGet, "/runs/large/export?format=xlsx", "", http.StatusUnprocessableEntity, nil)
	b.Read("/runs/large/export?format=xlsx&state=done", nil)                        // these fit
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{SpoolDir: os.DevNull}) // no directory
	if answer, _ = b.Get("/runs/large/export?format=xlsx&state=done"); answer.StatusCode < 500 {
		t.Errorf("a workbook that cannot be kept: %v", answer)
	}
}

type keyed struct {
	ID string `json:"id"`
}

// What a service calls JSON is JSON to every reader, whether it fits a message or not, and as bytes as well.
func TestJSONOfAnySizeIsJSON(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	const size = 2_000_000
	object := func(n int) string { return `{"n":1,"t":"` + strings.Repeat("x", n) + `"}` }
	answers := map[string]any{"a": json.RawMessage(object(size)), "b": json.RawMessage(object(1)),
		"c": wire.Binary{ContentType: "application/json; charset=utf-8", Data: []byte(object(size))},
		"d": wire.Binary{ContentType: "application/json", Data: []byte(object(1))}}
	for key, text := range map[string]string{"e": `{"n":1,"n":"%s"}`, "f": "{\"n\":\"%s\xff\"}"} { // as large, flawed
		answers[key] = wire.Binary{ContentType: "application/json",
			Data: []byte(strings.Replace(text, "%s", strings.Repeat("x", size), 1))}
	}
	answers["g"] = wire.Binary{ContentType: "application/json", Data: []byte("{\"n\":\"\xff\"}")}
	e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "echo", func(_ context.Context, in keyed) (any, error) {
			return answers[in.ID], nil
		})
	})
	code, text := e.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&key=id&name=large",
		strings.NewReader("id\na\nb\nc\nd\ne\nf\ng\n"))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	e.Bench.Until("the run completes", `SELECT state = 'completed' FROM batchrun WHERE name = 'large'`)
	_, lines := e.Get("/runs/large/export?format=ndjson")
	_, flat := e.Get("/runs/large/export?format=csv&flat=true")
	_, file := e.Get("/runs/large/export?format=parquet")
	rows, err := parquet.Read[struct {
		Result *string `parquet:"result,optional"`
		Bytes  []byte  `parquet:"result_bytes,optional"`
	}](strings.NewReader(file), int64(len(file)))
	testenv.NoError(t, err)
	for i, n := range []int{size, 1, size, 1} {
		key := string(rune('a' + i))
		want := `"key":"` + key + `","state":"done","step":"echo","result":` + object(n) + "}"
		testenv.Has(t, lines, want, "NDJSON")
		testenv.Has(t, flat, key+",done,,,,1,"+strings.Repeat("x", n)+",\n", "flat CSV")
		if rows[i].Result == nil || *rows[i].Result != object(n) || rows[i].Bytes != nil {
			t.Errorf("Parquet has another result for %s: %d bytes", key, len(rows[i].Bytes))
		}
		if answer, body := e.Get("/runs/large/items/" + key + "/result"); body != object(n) ||
			answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the result of %s is %v, %d bytes", key, answer.Header, len(body))
		}
	}
	for key, code := range map[string]string{"e": "duplicate_name", "f": "not_utf8", "g": "not_utf8"} {
		testenv.Has(t, lines, `"key":"`+key+`","state":"failed","step":"echo","error":{"code":"`+code+`"`,
			"%s did not fail with %s", key, code)
	}
	e.Says(200, "/runs/large/reset", `{"where_result":"$.n == 1","dry_run":true}`, `"items":4`)
}
