package runs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"mime"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Limits of file names. File systems allow 255 bytes.
const (
	longestName = 200
	shardItems  = 1000
)

// fileNames makes file names from a template. A name is safe for any key: only ASCII letters and digits, -_.+=,@
// and inner spaces are kept; the rest becomes %XX. No part of a path begins with a dot, ends in a dot or space, is a
// device name, or exceeds 200 bytes. Names never differ by case alone: the second one gets its ordinal.
type fileNames struct {
	template string
	index    string              // lower case name of the index, not used for directories
	taken    map[uint64]struct{} // hashes of lower case names: 8 bytes each
}

type named struct {
	key, step, contentType string
	ordinal                int
}

var nameField = regexp.MustCompile(`\{[^}]*\}`)

func newFileNames(template string) (*fileNames, error) {
	fields := []string{"{key}", "{ordinal}", "{step}", "{ext}", "{shard}"}
	for _, field := range nameField.FindAllString(template, -1) {
		if !slices.Contains(fields, field) {
			return nil, fmt.Errorf("--name: there is no %.40s; there are %s", field, strings.Join(fields, ", "))
		}
	}
	text := nameField.ReplaceAllLiteralString(template, "")
	if strings.Contains(text, "{") {
		return nil, fmt.Errorf("--name %.80q: a { without its }", template)
	}
	for i := range len(text) {
		if c := text[i]; !plainInName(c) && c != '/' && c != ' ' {
			return nil, fmt.Errorf("--name: %q is not for names of files everywhere; use A-Z a-z 0-9 - _ . + = , @ and /", c)
		}
	}
	if !strings.Contains(template, "{key}") && !strings.Contains(template, "{ordinal}") {
		return nil, fmt.Errorf("--name %.80q: it needs {key} or {ordinal}, or all files had one name", template)
	}
	for part := range strings.SplitSeq(template, "/") {
		if part == "" || strings.HasPrefix(part, ".") {
			return nil, fmt.Errorf("--name %.80q: it leads nowhere but into --dir: no part of it is empty or begins with a dot",
				template)
		}
	}
	return &fileNames{template: template, taken: map[uint64]struct{}{}}, nil
}

func plainInName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.+=,@", c) >= 0
}

// of returns the unique name of an item's file, with slashes.
func (f *fileNames) of(item *named) string {
	name := nameField.ReplaceAllStringFunc(f.template, func(field string) string {
		switch field {
		case "{key}":
			return escapeName(item.key)
		case "{step}":
			return escapeName(item.step)
		case "{ordinal}":
			return strconv.Itoa(item.ordinal)
		case "{shard}":
			return fmt.Sprintf("%04d", item.ordinal/shardItems)
		default:
			return extension(item.contentType)
		}
	})
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = safeName(parts[i])
	}
	if len(parts) > 1 && strings.ToLower(parts[0]) == f.index {
		parts[0] = escapeFirst(parts[0])
	}
	name = strings.Join(parts, "/")
	if !f.take(name) {
		// A ~ never comes from a key, so the name is unique.
		ext := path.Ext(name)
		name = strings.TrimSuffix(name, ext) + "~" + strconv.Itoa(item.ordinal) + ext
		f.take(name)
	}
	return name
}

func (f *fileNames) reserve(index string) {
	f.index = strings.ToLower(index)
	f.take(index)
}

func (f *fileNames) take(name string) bool {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(strings.ToLower(name)))
	if _, taken := f.taken[hash.Sum64()]; taken {
		return false
	}
	f.taken[hash.Sum64()] = struct{}{}
	return true
}

func escapeName(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; plainInName(c) || c == ' ' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func safeName(part string) string {
	part = cmp.Or(part, "%00")
	if c := part[0]; c == '.' || c == ' ' || isDevice(part) {
		part = escapeFirst(part)
	}
	if last := part[len(part)-1]; last == '.' || last == ' ' {
		part = fmt.Sprintf("%s%%%02X", part[:len(part)-1], last)
	}
	if len(part) <= longestName {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	ext := path.Ext(part)
	if len(ext) > 16 {
		ext = ""
	}
	return part[:longestName-40] + "~" + hex.EncodeToString(sum[:8]) + ext
}

func escapeFirst(part string) string { return fmt.Sprintf("%%%02X%s", part[0], part[1:]) }

var device = regexp.MustCompile(`^(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|COM[0-9]|LPT[0-9])$`)

func isDevice(part string) bool {
	stem, _, _ := strings.Cut(part, ".")
	return device.MatchString(strings.ToUpper(strings.TrimRight(stem, " ")))
}

func extension(contentType string) string {
	base, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		base = "application/json" // "" means JSON
		if contentType != "" {
			base = ""
		}
	}
	known := map[string]string{
		"application/json": "json", "application/pdf": "pdf", "application/xml": "xml", "text/xml": "xml",
		"application/zip": "zip", "application/gzip": "gz", "text/plain": "txt", "text/csv": "csv", "text/html": "html",
		"text/markdown": "md", "image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "image/gif": "gif",
		"image/webp": "webp", "image/tiff": "tif",
	}
	if ext, ok := known[base]; ok {
		return ext
	}
	return "bin"
}
