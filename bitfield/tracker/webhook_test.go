package tracker_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Calls are handed out host by host: of each no more than there is room for, the longest due first, and none that is
// in progress. Who has the fewest in progress comes first.
func TestWebhooksAreHandedOutByHost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, url := range []string{
		"https://one/1", "https://one/2", "HTTPS://One?3", "https://one:8443/4", "http://two#5", "https://two/6",
		"https://six/7",
	} {
		id := b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}})
		b.seal(id)
		b.exec(`UPDATE tracker_service SET webhook_next_at = webhook_next_at - ($2 || ' minutes')::interval
			WHERE batch_id = $1`, id, fmt.Sprint(60-i))
	}
	b.exec(`UPDATE tracker_service SET webhook_next_at = tranche_now() + interval '1 hour'
		WHERE webhook_url = 'https://six/7'`)
	room := func(perHost, atOnce int, underWay ...tracker.Webhook) []tracker.Webhook {
		t.Helper()
		due, err := tracker.DueWebhooks(t.Context(), b.pool, tracker.WebhookRoom{
			AtOnce: atOnce, PerHost: perHost, UnderWay: underWay,
		})
		testenv.NoError(t, err)
		return due
	}
	same := func(what string, got []tracker.Webhook, want ...string) {
		t.Helper()
		var urls []string
		for i := range got {
			urls = append(urls, got[i].URL)
		}
		if fmt.Sprint(urls) != fmt.Sprint(want) {
			t.Errorf("%s: %v; want %v", what, urls, want)
		}
	}
	all := room(10, 10)
	same("all", all, "https://one/1", "https://one:8443/4", "http://two#5", "https://one/2", "https://two/6",
		"HTTPS://One?3")
	if len(all) == 6 && (all[5].Host != "one" || all[1].Host != "one:8443" || all[2].Host != "two") {
		t.Errorf("hosts: %+v", all)
	}
	same("one of each", room(1, 10), "https://one/1", "https://one:8443/4", "http://two#5")
	same("two at once", room(10, 2), "https://one/1", "https://one:8443/4")
	same("the first is in progress", room(2, 10, all[0]), "https://one:8443/4", "http://two#5", "https://one/2",
		"https://two/6")
	same("a host is full", room(1, 10, all[0]), "https://one:8443/4", "http://two#5")
	same("all is full", room(10, 1, all[0]))
}

// Some room is only for hosts with none in progress: others, however many calls they are owed, leave it free.
func TestRoomIsKeptForHostsWithNoneUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, url := range []string{"https://one/1", "https://one/2", "https://one/3", "https://one/4", "https://two/1"} {
		b.seal(b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}}))
	}
	room := func(atOnce, kept int, underWay ...tracker.Webhook) (hosts []string, due []tracker.Webhook) {
		t.Helper()
		due, err := tracker.DueWebhooks(t.Context(), b.pool, tracker.WebhookRoom{
			AtOnce: atOnce, PerHost: 10, Kept: kept, UnderWay: underWay,
		})
		testenv.NoError(t, err)
		for i := range due {
			hosts = append(hosts, due[i].Host)
		}
		slices.Sort(hosts)
		return hosts, due
	}
	if got, _ := room(5, 0); len(got) != 5 {
		t.Errorf("with none kept: %v", got)
	}
	got, due := room(5, 2)
	if fmt.Sprint(got) != "[one one two]" {
		t.Errorf("with two kept of five: %v", got)
	}
	due = slices.DeleteFunc(due, func(w tracker.Webhook) bool { return w.Host == "two" })
	if got, _ := room(4, 2, due...); fmt.Sprint(got) != "[two]" {
		t.Errorf("with two of one in progress, and as many kept: %v", got)
	}
	if got, _ := room(1, 1); len(got) != 1 {
		t.Errorf("with all kept: %v", got)
	}
}

// A host is the same however its usual port, its dot and its letters are written.
func TestHostsOfWebhooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for url, host := range map[string]string{
		"https://h/x": "h", "https://h:443/x:443": "h", "HTTPS://H.:443?a": "h", "https://h.": "h", "https://h:": "h",
		"http://h:80#x": "h", "http://h.": "h", "http://h:443/": "h:443", "https://h:80": "h:80",
		"https://h.:8443/": "h:8443", "https://a.h:1443": "a.h:1443", "https://10.0.0.1:443": "10.0.0.1",
		"https://[::1]:443": "[::1]", "https://[::443]": "[::443]",
	} {
		id := b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}})
		var got string
		const sql = `SELECT webhook_host FROM tracker_service WHERE batch_id = $1`
		if err := b.pool.QueryRow(t.Context(), sql, id).Scan(&got); err != nil || got != host {
			t.Errorf("%s: %q, %v; want %q", url, got, err, host)
		}
	}
}
