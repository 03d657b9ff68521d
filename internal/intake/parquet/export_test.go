package parquet

// UnpackPage is unpackPage.
func UnpackPage(codec int, data []byte, n int) ([]byte, error) { return unpackPage(codec, data, n) }
