package archive

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestTheURLOfAnArchive(t *testing.T) {
	for target, says := range map[string]string{
		"s3://b/f/": "", "s3://b?endpoint=http://127.0.0.1:9000&region=eu": "",
		"": "want s3://BUCKET/FOLDER", "http://b/f": "invalid URL", "s3:///f": "invalid URL",
		"s3://b?x=1": `unknown parameter "x"`, "s3://b?endpoint=h:1": "use https://HOST:PORT",
		"s3://b?endpoint=http://u:secret@h": "use https://HOST:PORT", "s3://u:secret@b/f": "AWS_SHARED_CREDENTIALS_FILE",
	} {
		_, err := NewS3(target)
		if says == "" {
			testenv.NoError(t, err)
			continue
		}
		if testenv.Says(t, err, says, "%q", target); strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", target, err)
		}
	}
	testenv.Same(t, testenv.Must(NewS3("s3://b/f/?endpoint=http://h"))(t).Target(), "s3://b/f", "target")
}

type stuck struct{}

func (stuck) Target() string { return "stuck" }

func (stuck) Put(ctx context.Context, _ string, _ io.Reader) error {
	<-ctx.Done()
	return ctx.Err()
}

// A storage that answers nothing holds up retention for a time only.
func TestAStorageThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := New(nil, stuck{}, nil).lines(t.Context(), "d", "n", func(out io.Writer) (int64, error) {
			_, err := io.WriteString(out, "x")
			return 1, err
		})
		testenv.Is(t, err, errStalled, "it says")
	})
}
