package runs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// Items are run again and reset by ordinal, by themselves or among what failed.
func TestRangesOfOrdinals(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	started := b.Start("name=ranged")
	b.Finish(started.Run) // ordinal 1 fails
	post := func(action string, status int, want, body string) {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+"/runs/ranged/"+action, strings.NewReader(body),
			"Content-Type", "application/json")
		if code != status || !strings.Contains(string(text), want) {
			t.Errorf("%s %s: %d %s; want %d %s", action, body, code, text, status, want)
		}
	}
	post("rerun", 200, `"items":3`, `{"ranges":[[0,2]],"dry_run":true}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[1,2]],"failed":true,"dry_run":true}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[0,1]],"codes":["=BAD"],"dry_run":true}`)
	post("rerun", 409, "in these ranges", `{"ranges":[[2,2]],"codes":["=BAD"],"dry_run":true}`)
	post("rerun", 409, "in these ranges", `{"ranges":[[0,0],[2,2]],"failed":true}`)
	post("rerun", 422, "choose one of", `{"ranges":[[0,0]],"keys":["2"]}`)
	// An empty list must not choose as much as one that was left out.
	for field, body := range map[string]string{"keys": `"where":"$.x == 1"`, "codes": `"corrected":true`,
		"groups": `"failed":true`, "ranges": `"failed":true`, "states": `"failed":true`} {
		for _, none := range []string{"[]", "null"} {
			post("rerun", 422, field+" is empty: leave it out", `{"`+field+`":`+none+`,`+body+`}`)
		}
	}
	post("rerun", 422, "ordinals of the run go from 0 to 2", `{"ranges":[[0,3]]}`)
	post("rerun", 422, "smaller ordinal first", `{"ranges":[[2,1]]}`)
	post("rerun", 422, "ranges[0] must be an array of 2 values", `{"ranges":[[1,2,3]]}`)
	post("rerun", 422, "ranges[1] must be an array of 2 values", `{"ranges":[[1,2],[1]]}`)
	post("rerun", 422, "ranges[0] must be an array of 2 values", `{"ranges":[1,2]}`)
	post("rerun", 422, "ranges must be an array", `{"ranges":{"from":1}}`)
	post("rerun", 422, "ranges[0] is [-1,2]; ordinals", `{"ranges":[[-1,2]]}`)
	post("rerun", 422, "ranges[0][1] must be a whole number up to 2147483647, not 1.5", `{"ranges":[[0,1.5]]}`)
	post("rerun", 422, "up to 2147483647, not 99999999999", `{"ranges":[[0,99999999999]]}`)
	post("rerun", 422, "more than 1000 ranges", `{"ranges":[`+strings.Repeat("[0,0],", 1000)+`[0,0]]}`)
	post("rerun", 422, "not valid JSON", `{"ranges":[[0,`+"\x00"+`]]}`)
	post("rerun", 422, "codes[1] is empty", `{"codes":["a",""]}`)
	post("reset", 422, "codes[0] is empty", `{"codes":[""]}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[0,0],[0,0]]}`)
	b.Finish(started.Run)
	post("reset", 422, "choose one of", `{"ranges":[[0,0]],"all":true}`)
	post("reset", 422, "choose one of", `{"ranges":[[0,0]],"keys":["2"]}`)
	post("reset", 200, `"items":1`, `{"ranges":[[0,2]],"codes":["=BAD"],"dry_run":true}`)
	post("reset", 200, `"items":2`, `{"ranges":[[1,2]],"reason":"drag"}`)

	var audit []string
	err := b.Pool.QueryRow(t.Context(), `SELECT array_agg(action || ' ' || (detail->'ranges')::text ORDER BY id)
		FROM audit_log WHERE detail ? 'ranges'`).Scan(&audit)
	if err != nil || strings.Join(audit, "; ") != "rerun [[0, 0], [0, 0]]; reset [[1, 2]]" {
		t.Errorf("the audit log has %q, %v", audit, err)
	}
}
