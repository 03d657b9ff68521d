package parquet

import "github.com/parquet-go/parquet-go/format"

// UnpackPage is unpackPage.
func UnpackPage(codec format.CompressionCodec, data []byte, n int) ([]byte, error) {
	return unpackPage(codec, data, n)
}
