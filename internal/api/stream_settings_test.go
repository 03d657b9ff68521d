package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Settings are shown beside what the streams have, and changed; what would lose something is refused.
func TestStreamSettings(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.JSON(http.MethodPost, "/streams/settings", `{"replicas":3}`, 422, nil) // no node has started
	if _, err := session.New(b.Store).StreamSettings(t.Context(), session.StreamValues{}); err != nil {
		t.Fatal(err)
	}
	var s api.Streams
	b.JSON(http.MethodGet, "/streams", "", 200, &s)
	if !s.Auto || s.Replicas != 1 || s.WorkBytes != stream.DefaultWorkMaxBytes || s.Applied || s.Unknown != "" ||
		len(s.Streams) != 6 || s.Bytes != 4496293888 {
		t.Errorf("%+v", s)
	}
	b.JSON(http.MethodPost, "/streams/settings", `{"replicas":3,"work_bytes":2147483648,"event_age":"48h"}`, 200, &s)
	if s.Auto || s.Replicas != 3 || s.WorkBytes != 2<<30 || s.ChangedBy == "" {
		t.Errorf("%+v", s)
	}
	for body, says := range map[string]string{
		`{}`: "give replicas", `{"replicas":2}`: "replicas", `{"work_bytes":5}`: "65536", `{"event_age":"1m"}`: "event_age",
		`{"copies":3}`: "copies",
	} {
		if text := b.JSON(http.MethodPost, "/streams/settings", body, 422, nil); !strings.Contains(text, says) {
			t.Errorf("%s: %s; want %q in it", body, text, says)
		}
	}
}
