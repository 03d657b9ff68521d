package admin

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// To seal a batch again that is complete says that, and since when.
func TestSealAgain(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			_, _ = w.Write([]byte(`{"batch":"b","completed":false}`))
			return
		}
		_, _ = w.Write([]byte(`{"id":"b","state":"completed","completed_at":"2026-11-20T12:00:00Z"}`))
	}))
	t.Cleanup(server.Close)
	cl, err := client.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := (&trackerSeal{batchID{"b"}}).Run(t.Context(), &cli.Console{Out: &out}, cl); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "batch b is complete, since 2026-11-20 ") {
		t.Errorf("said %q", out.String())
	}
}

// A file of ids and ranges is told apart line by line; what is neither goes to the server, which says what is wrong,
// and the command says on which line that stands.
func TestAckLines(t *testing.T) {
	t.Parallel()
	const batch = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"
	lines := &ackLines{unit: "ids.txt: line", Scanner: linesOf(strings.NewReader(strings.Join([]string{
		"\ufeff" + batch + ":0:1", "", "  " + batch + ":0:2-3 ", batch + ":4", batch + ":4-7", batch + ":all", "0:17",
		batch + ":0:01", "garbage",
	}, "\r\n")))}
	piece, err := lines.fill("REFUSED")
	if err != nil || piece.count() != 8 || piece.set.Code != "REFUSED" {
		t.Errorf("%+v, %v", piece, err)
	}
	if want := []string{batch + ":0:1", batch + ":0:01"}; !slices.Equal(piece.set.IDs, want) {
		t.Errorf("ids %q; want %q", piece.set.IDs, want)
	}
	want := []string{batch + ":0:2-3", batch + ":4", batch + ":4-7", batch + ":all", "0:17", "garbage"}
	if !slices.Equal(piece.set.Ranges, want) {
		t.Errorf("ranges %q; want %q", piece.set.Ranges, want)
	}
	for location, want := range map[string]string{
		"body.ids[1]": "ids.txt: line 8: wrong", "body.ranges[5]": "ids.txt: line 9: wrong", "body.ids[2]": "the server's",
		"body.code": "the server's",
	} {
		refused := &client.ProblemError{Problem: client.Problem{Detail: "the server's",
			Errors: []*client.ErrorDetail{{Location: location, Message: "wrong"}}}}
		if got := lines.place(refused, piece); got.Error() != want {
			t.Errorf("%s is %q; want %q", location, got, want)
		}
	}
	if rest, err := lines.fill(""); err != nil || rest.count() != 0 {
		t.Errorf("after the end there is %+v, %v", rest, err)
	}
	long := &ackLines{unit: "argument", Scanner: linesOf(strings.NewReader("\n" + strings.Repeat("x", 2*maxAckLine)))}
	if _, err := long.fill(""); err == nil || !strings.Contains(err.Error(), "argument 2: ") {
		t.Errorf("a line without an end: %v", err)
	}
}

// What others have written does not move the cursor.
func TestBatchText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	b := &client.BatchView{
		BatchSummary: client.BatchSummary{
			ID: "0198c5f2", Owner: "bil\x1b[2Jling", Key: "nov\n", State: "completed", Items: 20000, Groups: 3,
			CreatedBy: "ann", CompletedAt: &at, Keep: "168h0m0s",
			Webhook: &client.WebhookView{URL: "https://api.bank.example/", Secret: "hooks", State: "given_up", Attempts: 9,
				Error: "it answers 500\r"},
		},
		Done: 19990, Failed: 10, Codes: map[string]int64{"A": 2, "B\a": 8}, Missing: []string{"0:1-4"},
	}
	text := batchText(b) + missingText(b)
	for _, want := range []string{
		`bil\x1b[2Jling`, `nov\x0a`, "20,000 in 3 groups", `10 (B\x07 8, A 2)`, "168h after its end",
		`signed with hooks: given up; it answers 500\x0d`, "0198c5f2:0:1-4\n", "completed since",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
}
