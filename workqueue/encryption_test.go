package workqueue_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

const canary = "canary-7f3a"

// secretRun makes a run of two items whose steps see and return canaries, one of them in pieces, corrects an item, and
// returns the dead letter and the quarantined message about it.
func secretRun(b *storetest.Bench) (run workqueue.RunID, letter workqueue.LetterID, quarantined int64) {
	b.Helper()
	req := storetest.Planned(storetest.Need("fetch"), storetest.Need("compose", 0))
	req.Session, req.Params = b.Session, map[string]string{"of": canary}
	next := storetest.Keys("K-0", "K-1")
	run = testenv.Must(start.New(b.Store).Load(b.Context(), req, func(item *start.LoadItem) error {
		err := next(item)
		item.Payload = fmt.Appendf(nil, `{"of":%q,"is":%q}`, item.Key, canary)
		return err
	}))(b).Run
	b.Correct(run, `{"is":"other `+canary+`"}`, "K-1")
	claimed := b.ClaimStep(run, 0, storetest.Plenty)
	fetched := claimed.Slices[0]
	large := storetest.InPieces(fetched, 1, bytes.Repeat([]byte(canary), 9), 40)
	taken := b.TakePieces(large...)
	answer := storetest.Whole(fetched)
	answer.Slots[0].Result = []byte(`"` + canary + `"`)
	answer.Slots[1] = storetest.LargeAnswer(fetched, large[0], taken[0]).Slots[0]
	b.Record(answer)
	of := deadletter.New(b.Store)
	testenv.Must(of.Add(b.Context(), deadletter.DeadLetter{MsgID: run.String(), Endpoint: "e", Run: &run,
		Body: []byte(canary)}))(b)
	testenv.NoError(b, of.Quarantine(b.Context(), deadletter.Quarantined{Run: [16]byte(run), Body: []byte(canary)}))
	letters := testenv.Must(of.DeadLetters(b.Context(), deadletter.DeadFilter{}))(b).Letters
	messages := testenv.Must(of.QuarantinedMessages(b.Context(), deadletter.QuarantineFilter{Run: run}))(b).Messages
	params := testenv.Must(b.Store.Params(b.Context(), b.Pool, run, claimed.Params))(b)
	testenv.Same(b, params["of"], canary, "the parameters that were claimed")
	return run, letters[0].ID, messages[0].ID
}

// whatIsRead is what each way to read a run's values returns, without times and IDs.
func whatIsRead(b *storetest.Bench, run workqueue.RunID, letter workqueue.LetterID, quarantined int64) string {
	b.Helper()
	ctx, out := b.Context(), &strings.Builder{}
	composed := b.ClaimStep(run, 1, storetest.Plenty)
	mask := bitfield.Full(2)
	want := dispatch.InputRequest{Run: run, Mask: &mask, Inputs: composed.Work.Inputs}
	testenv.NoError(b, dispatch.New(b.Store).EachInput(ctx, want, func(in dispatch.Input) bool {
		fmt.Fprintf(out, "%s %s %s %v\n", in.Key, in.Payload, in.Parts[0].Data, in.Parts[0].Ref)
		return true
	}))
	slice := composed.Slices[0]
	result := []byte(`"` + canary + `"`)
	sum, all := sha256.Sum256(result), bytes.Repeat([]byte(canary), 9)
	largeSum := sha256.Sum256(all)
	for _, asked := range []dispatch.PartRequest{
		{Ordinal: 0, Bytes: int64(len(result)), SHA256: sum[:], From: 3, Most: 4},
		{Ordinal: 1, Bytes: int64(len(all)), SHA256: largeSum[:], From: 45, Most: 50},
	} {
		asked.Slice, asked.Endpoint, asked.Step = slice.ID, slice.Endpoint, "fetch"
		fmt.Fprintf(out, "%s\n", testenv.Must(dispatch.New(b.Store).Part(ctx, asked))(b))
	}
	b.Record(storetest.Whole(slice))
	e := testenv.Must(export.New(b.Store).Open(ctx, export.Request{Run: run, Payload: true, Parts: true}))(b)
	testenv.NoError(b, e.Each(ctx, func(i *export.Item) error {
		fmt.Fprintf(out, "%s %s %s %s\n", i.Key, i.Payload, i.Parts[0].Result, i.Parts[1].Result)
		if of := i.Parts[0].Large; of != nil {
			r := testenv.Must(export.New(b.Store).OpenResult(ctx, of.ID))(b)
			fmt.Fprintf(out, "%s %v\n", testenv.Must(io.ReadAll(r))(b),
				testenv.Must(export.New(b.Store).Verify(ctx, of.ID, largeSum, io.Discard))(b))
		}
		return nil
	}))
	for _, key := range []string{"K-0", "K-1"} {
		item := testenv.Must(inspect.New(b.Store).Items(ctx, run, key))(b)[0]
		fmt.Fprintf(out, "%s %s %s %d %s", item.Payload, item.Steps[0].Result, item.Steps[0].SHA256, item.Steps[0].Size,
			testenv.Must(report.New(b.Store).Payloads(ctx, run, []string{key}))(b))
		for _, earlier := range item.EarlierPayloads {
			fmt.Fprintf(out, " %s", earlier.Payload)
		}
	}
	view := testenv.Must(inspect.New(b.Store).Run(ctx, run))(b)
	fmt.Fprintf(out, "%v %v\n", view.Params, view.ParamsError)
	one := testenv.Must(export.New(b.Store).Result(ctx, export.ResultRequest{Run: run, Step: "fetch", Key: "K-0"}))(b)
	of := deadletter.New(b.Store)
	digests := testenv.Must(report.New(b.Store).Digests(ctx, run))(b)
	fmt.Fprintf(out, "%s %x\n%v\n%s %s %d %d", one.Body, one.SHA256, digests,
		testenv.Must(of.DeadLetter(ctx, letter.String()))(b).Body,
		testenv.Must(of.QuarantinedMessage(ctx, quarantined))(b).Body,
		testenv.Must(of.DeadLetters(ctx, deadletter.DeadFilter{}))(b).Letters[0].Size,
		testenv.Must(of.QuarantinedMessages(ctx, deadletter.QuarantineFilter{Run: run}))(b).Messages[0].Size)
	return out.String()
}

// TestEncryptedRunsAreUnreadable compares an encrypted run with one that is not, looks for its values in all tables,
// and moves some.
//
// PROOF: who may do what, 26.
func TestEncryptedRunsAreUnreadable(t *testing.T) {
	b := storetest.Setup(t)
	plain, letter, quarantined := secretRun(b)
	want := whatIsRead(b, plain, letter, quarantined)
	old, newer := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	testenv.NoError(t, b.Store.SetKeys([][]byte{old}))
	_, err := start.New(b.Store).Load(t.Context(), storetest.Request(), storetest.Keys("a"))
	b.WantSaid(err, "has another key, or none", "--encryption-key")
	b.Expire(b.Session)
	b.Session = b.Open()

	var found string
	places := func() {
		t.Helper()
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(c.relname, ' '), '') FROM pg_class c
			WHERE c.relkind = 'r' AND c.relnamespace = current_schema::regnamespace
			AND (xpath('/row/n/text()', query_to_xml(format(
				'SELECT count(*) AS n FROM %I x WHERE x::text ~ %L OR x::text ~ %L', c.relname,
				$1::text, encode(convert_to($1::text, 'UTF8'), 'hex')), false, true, '')))[1]::text <> '0'`, canary).Scan(&found))
	}
	if places(); !strings.Contains(found, "work_queue_00") || !strings.Contains(found, "work_piece") {
		t.Fatalf("the run that is not encrypted was found only in %s", found)
	}
	b.Exec(`TRUNCATE batchrun, work_queue, work_result, work_correction, large_result, dead_letter, quarantine CASCADE`)
	run, letter, quarantined := secretRun(b)
	testenv.Same(t, whatIsRead(b, run, letter, quarantined), want, "what is read")
	b.Check()
	if places(); found != "" {
		t.Errorf("values of an encrypted run are in %s", found)
	}
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{
		Evidence: redo.Evidence{Where: "$.of"}}})
	b.WantSaid(err, "encrypted")
	_, err = inspect.New(b.Store).GroupsBy(t.Context(), run, "of")
	b.WantSaid(err, "encrypted")

	testenv.Must(start.New(b.Store).Load(t.Context(), storetest.Request(), storetest.Keys("a")))(t) // in progress
	testenv.NoError(t, b.Store.SetKeys([][]byte{newer, old}))
	_, _, err = b.Store.RotateKeys(t.Context())
	b.WantSaid(err, "does not have the first one") // the session has the old one only
	again := redo.Selection{Step: "fetch", Keys: []string{"K-0"}}
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: again})
	b.WantSaid(err, "rerun items of", "has another key, or none")
	none := workqueue.NewRunID()
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: none, Select: again})
	b.WantSaid(err, "rerun: run "+none.String()+": not found")
	b.Expire(b.Session)
	rotated, lost, err := b.Store.RotateKeys(t.Context())
	testenv.NoError(t, err)
	testenv.Same(t, [2]int{rotated, lost}, [2]int{2, 0}, "keys that were rotated, and lost")
	other := database.New(b.Pool)
	testenv.NoError(t, other.SetKeys([][]byte{old}))
	b.WantSaid(other.CheckKeys(t.Context()), "does not have")
	left := deadletter.New(other) // without a body; else its message would come again forever
	testenv.Must(left.Add(t.Context(),
		deadletter.DeadLetter{MsgID: "1", Endpoint: "e", Run: &run, Body: []byte(canary)}))(t)
	testenv.NoError(t, left.Quarantine(t.Context(), deadletter.Quarantined{Run: [16]byte(run), Body: []byte(canary)}))
	places()
	testenv.Same(t, found, "", "where values of an encrypted run are")
	_, err = redo.New(other).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: again})
	b.WantSaid(err, "does not have")
	_, err = redo.New(other).Reset(t.Context(), redo.ResetRequest{Run: run, Select: again, Reason: "r"})
	b.WantSaid(err, "does not have")
	_, err = session.New(other).StartSession(t.Context(), session.NodeInfo{Host: "h"}, storetest.SessionTTL)
	b.WantSaid(err, "--encryption-key")
	_, err = report.New(other).Payloads(t.Context(), run, []string{"K-0"})
	b.WantSaid(err, "does not have")
	testenv.NoError(t, other.SetKeys([][]byte{newer}))
	testenv.Must(report.New(other).Payloads(t.Context(), run, []string{"K-0"}))(t)

	b.Exec(`UPDATE work_queue q SET payload = o.payload FROM work_queue o WHERE q.ordinal = 0 AND o.ordinal = 1`)
	_, err = report.New(b.Store).Payloads(t.Context(), run, []string{"K-0"})
	b.WantSaid(err, "moved here from elsewhere")
	b.Exec(`UPDATE work_result r SET result = o.result FROM work_result o
		WHERE r.step = 0 AND o.step = 1 AND r.ordinal = 0 AND o.ordinal = 0`)
	_, err = export.New(b.Store).Result(t.Context(), export.ResultRequest{Run: run, Step: "fetch", Key: "K-0"})
	b.WantSaid(err, "moved here from elsewhere")
	item := testenv.Must(inspect.New(b.Store).Items(t.Context(), run, "K-0"))(t)[0]
	testenv.Same(t, string(item.Payload)+string(item.Steps[0].Result)+item.Steps[0].SHA256, "", "a damaged item")
	mask, damaged := bitfield.Full(2), []string{}
	testenv.NoError(t, dispatch.New(b.Store).EachInput(t.Context(), dispatch.InputRequest{Run: run, Mask: &mask,
		Step: "compose", Inputs: []workqueue.StepInput{{Name: "fetch"}}, NoItem: true}, func(in dispatch.Input) bool {
		damaged = append(damaged, fmt.Sprint(in.Damaged))
		return true
	}))
	if !strings.Contains(damaged[0], run.String()+" --step fetch --failed-at compose --code ") || damaged[1] != "<nil>" {
		t.Errorf("what is sent to the next step: %q", damaged)
	}
}
