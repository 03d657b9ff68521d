package httpfetch

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// The example of the standard's own libraries.
func TestSignatureIsTheStandards(t *testing.T) {
	t.Parallel()
	key := testenv.Must(signingKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))(t)
	timestamp, signature := sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0),
		[]byte(`{"test": 2432232314}`))
	if timestamp != "1614265330" || signature != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(timestamp, signature)
	}
	for _, wrong := range []string{"", "secret", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		_, err := signingKey(wrong)
		testenv.Fails(t, err, "the secret %q signs", wrong)
	}
}
