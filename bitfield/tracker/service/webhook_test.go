package service_test

import (
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

// Calls are handed out host by host: of each no more than there is room for, the longest due first, and none that is
// under way. Who has the fewest under way comes first.
func TestWebhooksAreHandedOutByHost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, url := range []string{
		"https://one/1", "https://one/2", "HTTPS://One?3", "https://one:8443/4", "http://two#5", "https://two/6",
		"https://six/7",
	} {
		id := b.openAs(service.OpenRequest{Owner: "o", Webhook: service.Hook{URL: url, Secret: "s"}})
		b.seal(id)
		b.exec(`UPDATE tracker_service SET webhook_next_at = webhook_next_at - ($2 || ' minutes')::interval
			WHERE batch_id = $1`, id, fmt.Sprint(60-i))
	}
	b.exec(`UPDATE tracker_service SET webhook_next_at = clock_timestamp() + interval '1 hour'
		WHERE webhook_url = 'https://six/7'`)
	room := func(perHost, atOnce int, underWay ...service.Webhook) []service.Webhook {
		t.Helper()
		due, err := service.DueWebhooks(t.Context(), b.pool, service.WebhookRoom{
			AtOnce: atOnce, PerHost: perHost, UnderWay: underWay,
		})
		if err != nil {
			t.Fatal(err)
		}
		return due
	}
	same := func(what string, got []service.Webhook, want ...string) {
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
	same("the first is under way", room(2, 10, all[0]), "https://one:8443/4", "http://two#5", "https://one/2",
		"https://two/6")
	same("a host is full", room(1, 10, all[0]), "https://one:8443/4", "http://two#5")
	same("all is full", room(10, 1, all[0]))
}
