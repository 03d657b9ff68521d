package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	// partSize is held in memory. An object has 10,000 parts at most.
	partSize = 32 << 20
	// A smaller object is one request.
	smallSize = 1 << 20

	defaultEndpoint = "https://s3.amazonaws.com"
)

// S3 is a folder in a bucket of S3, or of a compatible server. It is safe for concurrent use.
type S3 struct {
	client         *minio.Client
	bucket, folder string
}

// NewS3 returns the folder at s3://BUCKET/FOLDER, with endpoint and region as query parameters or as AWS's variables
// say, which also have the credentials, or where they are.
func NewS3(target string) (*S3, error) {
	u, err := url.Parse(target)
	var options url.Values
	if err == nil {
		options, err = url.ParseQuery(u.RawQuery)
	}
	switch {
	case err != nil || u.Scheme != "s3" || u.Host == "" || u.Fragment != "" || len(options) > len(u.Query()):
		err = errors.New("invalid URL")
	case u.User != nil:
		err = errors.New("credentials are not accepted in the URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or " +
			"AWS_SHARED_CREDENTIALS_FILE")
	}
	var at *url.URL
	if err == nil {
		at, err = endpointOf(options)
	}
	if err != nil {
		return nil, fmt.Errorf("want s3://BUCKET/FOLDER, with ?endpoint=https://HOST:PORT&region=REGION if it is not "+
			"Amazon's: %w", err)
	}
	client, err := minio.New(at.Host, &minio.Options{
		Secure: at.Scheme == "https",
		Region: cmp.Or(options.Get("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
	})
	return &S3{client: client, bucket: u.Host, folder: strings.Trim(u.Path, "/")}, err
}

func endpointOf(options url.Values) (*url.URL, error) {
	for name := range options {
		if name != "endpoint" && name != "region" {
			return nil, fmt.Errorf("unknown parameter %q", name)
		}
	}
	text := cmp.Or(options.Get("endpoint"), os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		defaultEndpoint)
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || strings.Trim(at.Path, "/") != "" ||
		at.User != nil || at.RawQuery != "" {
		return nil, errors.New("invalid endpoint; use https://HOST:PORT")
	}
	return at, nil
}

// Target returns the URL, without parameters.
func (s *S3) Target() string { return "s3://" + path.Join(s.bucket, s.folder) }

// Put stores an object. Of a larger one it holds a part in memory.
func (s *S3) Put(ctx context.Context, name string, body io.Reader) error {
	options := minio.PutObjectOptions{PartSize: partSize, SendContentMd5: true}
	buffered, size := bufio.NewReaderSize(body, smallSize), int64(-1)
	all, err := buffered.Peek(smallSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	body = buffered
	if err != nil {
		body, size = bytes.NewReader(all), int64(len(all))
	}
	_, err = s.client.PutObject(ctx, s.bucket, path.Join(s.folder, name), body, size, options)
	return err
}
