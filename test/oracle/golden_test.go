package oracle

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func goldenFile(kind string) string { return filepath.Join("testdata", "answers", kind+".jsonl.zst") }

func write(t *testing.T, kind string, all []answer) {
	t.Helper()
	var lines bytes.Buffer
	for _, a := range all {
		lines.Write(append(encode(a), '\n'))
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(goldenFile(kind)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goldenFile(kind), w.EncodeAll(lines.Bytes(), nil), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, kind string) map[string]answer {
	t.Helper()
	packed, err := os.ReadFile(goldenFile(kind))
	if err != nil {
		t.Fatal(err)
	}
	r, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := r.DecodeAll(packed, nil)
	if err != nil {
		t.Fatalf("%s: %v", goldenFile(kind), err)
	}
	all := map[string]answer{}
	for line := range bytes.Lines(data) {
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("%s: %v", goldenFile(kind), err)
		}
		all[a.Name] = a
	}
	return all
}
