package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	scheduling "github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestARequestWithAKeyIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Sent(201, false, `"items":3`, "k1", "/runs?endpoint=echo&name=n", apitest.Three)
	testenv.Same(t, b.Sent(201, true, `"items":3`, "k1", "/runs?name=n&endpoint=echo", apitest.Three), first,
		"the answer to the second start")
	b.Sent(422, false, "for another request", "k1", "/runs?endpoint=echo&name=n", apitest.Three+"4,d\n")
	b.Sent(422, false, "for another request", "k1", "/runs?endpoint=echo&name=n", apitest.Three[:len(apitest.Three)-1])
	b.Sent(422, false, "for another request", "k1", "/runs?endpoint=echo&name=m", apitest.Three)
	b.Sent(422, false, "for another request", "k1", "/runs/last/cancel", "")
	b.Sent(201, false, `"items":3`, "k1", "/runs?endpoint=echo&name=n", apitest.Three, apicore.ActorHeader, "ann")
	b.Sent(422, false, "endpoint", "k2", "/runs?endpoint=e+cho", apitest.Three) // refused: the key is still free
	b.Sent(201, false, "", "k2", "/runs?endpoint=echo", apitest.Three)
	b.Sent(200, false, `"dry_run":true`, "k3", "/runs?endpoint=echo&dry_run=true", apitest.Three)
	b.Sent(200, true, `"dry_run":true`, "k3", "/runs?endpoint=echo&dry_run=true", apitest.Three)
	cancel := b.Sent(200, false, `"cancel"`, "k4", "/runs/last/cancel", `{"reason":"x"}`,
		"Content-Type", "application/json")
	testenv.Same(t, b.Sent(200, true, "", "k4", "/runs/last/cancel", `{"reason":"x"}`, "Content-Type", "application/json"),
		cancel, "the answer to a cancel is another the second time")
	part := func(boundary string) (string, string) {
		body := strings.ReplaceAll("--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"endpoint\":\"echo\"}"+
			"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"; filename=\"f\"\r\n\r\nid\n1\n\r\n--x--\r\n",
			"--x", "--"+boundary)
		return body, "multipart/form-data; boundary=" + boundary
	}
	body, kind := part("one-boundary")
	b.Sent(201, false, `"items":1`, "k5", "/runs", body, "Content-Type", kind)
	body, kind = part("another-boundary")
	b.Sent(201, true, `"items":1`, "k5", "/runs", body, "Content-Type", kind)
	b.Sent(422, false, "for another request", "k5", "/runs", strings.Replace(body, "1\n", "2\n", 1), "Content-Type", kind)
	for _, bad := range []string{"", "a b", strings.Repeat("x", 201), "é"} {
		b.Sent(422, false, apicore.IdempotencyHeader, bad, "/runs?endpoint=echo", apitest.Three)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 4, "runs")
}

// While a request is in progress, another with its key has to wait, and is told so.
func TestARequestUnderWayIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	body, sender := io.Pipe()
	t.Cleanup(func() { _ = sender.Close() })
	done := make(chan string, 1)
	go func() {
		code, _, err := b.TryAsk(http.MethodPost, api.Prefix+"/runs?endpoint=echo", body, apicore.IdempotencyHeader, "k")
		done <- fmt.Sprint(code, err)
	}()
	testenv.Must(sender.Write([]byte("id\n1\n")))(t)
	apitest.Eventually(t, "the request is in progress",
		func() bool { return b.Number(`SELECT count(*) FROM api_request`) > 0 })
	answer, text := b.SendKeyed("k", "/runs?endpoint=echo", strings.NewReader("id\n1\n2\n"))
	if answer.StatusCode != http.StatusConflict || answer.Header.Get("Retry-After") == "" ||
		!strings.Contains(text, "in progress") {
		t.Errorf("%d %v %s", answer.StatusCode, answer.Header, text)
	}
	testenv.Must(sender.Write([]byte("2\n")))(t)
	testenv.NoError(t, sender.Close())
	testenv.Same(t, <-done, fmt.Sprint(201, error(nil)), "the first")
	b.Sent(201, true, `"items":2`, "k", "/runs?endpoint=echo", "id\n1\n2\n")
}

// A node may die at any point of a request. What it had committed is not redone, and what it had not is.
func TestANodeThatDiesInARequest(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	dead := func(key, carriedOut string) { // as a node leaves it that died before it could keep the answer
		t.Helper()
		testenv.Must(b.Pool.Exec(t.Context(), `UPDATE api_request SET status = NULL, body = NULL, headers = '{}',
			fingerprint = substring(fingerprint FOR 32), session_id = gen_random_uuid(),
			committed_action = `+carriedOut+` WHERE key = $1`, key))(t)
	}
	var started runs.Started
	testenv.NoError(t, json.Unmarshal([]byte(b.Sent(201, false, "", "start", "/runs?endpoint=echo", apitest.Three)),
		&started))
	dead("start", "committed_action")
	b.Sent(200, true, `"run":"`+started.Run.String(), "start", "/runs?endpoint=echo", apitest.Three)
	b.Sent(200, true, `"existing":true`, "start", "/runs?endpoint=echo", apitest.Three)

	b.Sent(200, false, "", "pause", "/runs/last/pause", "")
	dead("pause", "committed_action")
	b.Sent(409, false, "nothing is repeated", "pause", "/runs/last/pause", "")
	b.Sent(200, false, "", "resume", "/runs/last/resume", "")
	dead("resume", "committed_action")
	b.Sent(422, false, "another request", "resume", "/runs/last/pause", "")

	b.Sent(200, false, "", "set", "/runs/last/settings", `{"chunk":7}`, "Content-Type", "application/json")
	testenv.Same(t, b.Number(`SELECT count(*) FROM api_request WHERE key = 'set' AND committed_action->>'action' = 'set'
		AND committed_action->>'run' = $1`, started.Run.String()), 1, "changes that note that they were carried out")
	dead("set", "NULL") // it had not come to its commit
	b.Sent(200, false, "", "set", "/runs/last/settings", `{"chunk":7}`, "Content-Type", "application/json")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 1, "runs")
}

// A node that was thought dead commits nothing of a request that another has taken over.
func TestAClaimThatIsLostChangesNothing(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	ctx := t.Context()
	key := workqueue.RequestKey{User: "ann", Key: "k"}
	zombie, _, err := session.New(b.Store).ClaimRequest(ctx, key, "op", []byte("f"), workqueue.NewSessionID())
	testenv.NoError(t, err)
	heir, known, err := session.New(b.Store).ClaimRequest(ctx, key, "op", []byte("f"), b.Engine.ID)
	if err != nil || heir == nil {
		t.Fatalf("%+v, %v", known, err)
	}
	other, _, err := session.New(b.Store).ClaimRequest(ctx, key, "op", []byte("f"), workqueue.NewSessionID())
	if other != nil || err != nil {
		t.Errorf("a request that a live node is at was taken over: %v", err)
	}
	plan := workqueue.Document{Name: "p", Spec: json.RawMessage(`{"steps":[]}`), Source: "x"}
	_, err = start.New(b.Store).ApplyPlan(session.WithClaim(ctx, zombie), plan, "ann")
	if n := b.Number(`SELECT (SELECT count(*) FROM plan) + (SELECT count(*) FROM audit_log)`); n != 0 ||
		!errors.Is(err, workqueue.ErrClaimLost) {
		t.Errorf("the zombie's plan: %v, and %d rows", err, n)
	}
	testenv.Must(start.New(b.Store).ApplyPlan(session.WithClaim(ctx, heir), plan, "ann"))(t)
	testenv.NoError(t, session.New(b.Store).DropRequest(ctx, heir))
	testenv.Same(t, b.Number(`SELECT count(*) FROM api_request`), 1, "what was carried out was forgotten")
	lease := testenv.Must(session.New(b.Store).Lead(ctx, b.Engine.ID, time.Minute))(t)
	if n, err := session.New(b.Store).SweepRequests(ctx, lease); n != 0 || err != nil {
		t.Errorf("a new request was swept: %d, %v", n, err)
	}
	testenv.Must(b.Pool.Exec(ctx, `UPDATE api_request SET created_at = created_at - $1::interval`,
		session.RequestKept+time.Minute))(t)
	if n, err := session.New(b.Store).SweepRequests(ctx, lease); n != 1 || err != nil {
		t.Errorf("an old request was not swept: %d, %v", n, err)
	}
}

// Who has not logged in learns nothing of the keys of others, and keeps no one from theirs.
func TestAKeyIsNotLookedAtWithoutALogin(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	ann := []string{"Authorization", "Bearer " + b.Token("ann", access.Operator, 0).Secret}
	b.Sent(201, false, `"items":3`, "k1", "/runs?endpoint=echo", apitest.Three, ann...)
	for _, path := range []string{"/", "/runs", "/healthz", "/elsewhere"} {
		answer := b.Send(http.MethodPost, path, "", apicore.IdempotencyHeader, "k1", apicore.ActorHeader, "ann")
		if answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusNotFound {
			t.Errorf("POST %s with the key of another: %d; want 404 or 405", path, answer.StatusCode)
		}
	}
}

// The key of a run with other items, or asked for otherwise, is a conflict that says in what.
func TestRunKeyWithOtherContentIsRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const path = "/runs?endpoint=echo&idempotency_key=k"
	b.Want(path, "id,a\n1,x\n2,y\n", 201, `"existing":false`)
	b.Want(path, `{"id":"1","a":"x"}`+"\n"+`{"id":"2","a":"y"}`, 200, `"existing":true`)
	b.Want(path+"&done_by=2999-01-02T06:00:00Z", "id,a\n1,x\n2,y\n", 200, `"existing":true`) // the next 06:00
	b.Want(path, "id,a\n1,x\n2,z\n", 409, "with other content: the items (as many, 2,")
	b.Want(path, "id,a\n1,x\n", 409, "the items (2 then, 1 now)")
	b.Want(path+"&dry_run=true", "id,a\n1,x\n", 409, "the items (2 then, 1 now)")
	b.Want(path+"&on_duplicate=skip", "id,a\n1,x\n2,y\n", 409, `on_duplicate (\"error\" then, \"skip\" now)`)
	b.Want(path+"&chunk=7", "id,a\n1,x\n2,y\n", 409, "the plan's steps.echo.chunk (500 then, 7 now)")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 1, "runs")
}

// A start that is repeated gives the run that is there, whatever has become of its plan, and of this program.
func TestARepeatedStartFindsItsRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Apply(apitest.YearEnd, "")
	start := func(code int, query string) (out runs.Started) {
		t.Helper()
		b.JSON(http.MethodPost, "/runs?"+query, apitest.Three, code, &out)
		return out
	}
	first := start(201, "plan_ref=year-end&max_attempts=9&idempotency_key=a")
	b.Apply(strings.Replace(apitest.YearEnd, "100", "200", 1), "")
	again := start(200, "plan_ref=year-end&max_attempts=9&idempotency_key=a")
	if again.Run != first.Run || again.PlanVersion != 1 {
		t.Errorf("of a plan with a new version: %+v; want %+v", again, first)
	}
	start(409, "plan_ref=year-end@2&max_attempts=9&idempotency_key=a")
	start(409, "plan_ref=year-end&max_attempts=8&idempotency_key=a")

}

// An occurrence starts one run, with the parameters of its due time, the items of its file, and a key
// by which the next leader finds it again.
func TestAnOccurrenceStartsOneRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "customers.csv"), []byte(apitest.Three), 0o600))
	testenv.NoError(t, os.Chtimes(filepath.Join(dir, "customers.csv"), time.Time{}, time.Now().Add(-time.Minute)))
	files := testenv.Must(scheduling.OpenFiles(dir))(t)
	t.Cleanup(func() { _ = files.Close() })
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{Schedules: api.Schedules{Files: files}})
	const text = "name: often\nevery: 720h\nendpoint: echo\nsettings: {chunk: 2}\nparams: {at: \"{due.unix}\"}\n" +
		"run_name: \"{schedule} {due}\"\nitems: {file: customers.csv}\n"
	if code, answer := b.Schedule("/schedules", text); code != 200 || strings.Contains(answer, "warnings") {
		t.Fatalf("apply: %d %s", code, answer)
	}
	large := fmt.Sprintf("params: {a: %[1]s, b: %[1]s, c: %[1]s, d: %[1]s, e: %[1]s, at", strings.Repeat("x", 4000))
	code, answer := b.Schedule("/schedules", strings.Replace(text, "params: {at", large, 1))
	testenv.Same(t, code, 422, "params of 20,000 bytes: %s", answer)
	lease := testenv.Must(session.New(b.Store).Lead(t.Context(), b.Engine.ID, time.Hour))(t)
	seen := map[workqueue.RunID]bool{}
	for range 2 {
		fire := testenv.Must(schedule.New(b.Store).RunScheduleNow(t.Context(), "often", "ann"))(t)
		claim, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), lease,
			schedule.OccurrenceKey{Schedule: "often", Due: fire.Due, Kind: fire.Kind}, nil)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		job := scheduling.Job{Claim: claim, Spec: testenv.Must(scheduling.Parse("often", []byte(text)))(t)}
		first := testenv.Must(b.Server.Starter().StartOccurrence(t.Context(), job))(t)
		again := testenv.Must(b.Server.Starter().StartOccurrence(t.Context(), job))(t)
		if first.Existing || !again.Existing || again.Run != first.Run || seen[first.Run] {
			t.Errorf("started %+v, and again %+v", first, again)
		}
		seen[first.Run] = true
		run := testenv.Must(inspect.New(b.Store).Run(t.Context(), first.Run))(t)
		if run.Items != 3 || run.Params["at"] != fmt.Sprint(fire.Due.Unix()) || !strings.HasPrefix(run.Name, "often 20") ||
			run.Source != "file customers.csv" {
			t.Errorf("the run of %s is %+v", fire.Due, run)
		}
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM run_step WHERE chunk = 2`), 2, "runs have the settings")
}
