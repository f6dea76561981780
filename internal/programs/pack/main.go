// Command pack compresses programs for embedding. It reads the programs named
// as arguments and writes NAME.zst and NAME.sha256 (digest and size) into -o.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", ".", "directory to write into")
	flag.Parse()
	for _, path := range flag.Args() {
		if err := pack(*out, path); err != nil {
			log.Fatal(err)
		}
	}
}

func pack(out, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	base := filepath.Join(out, filepath.Base(path))
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	note := fmt.Sprintf("%x %d\n", sha256.Sum256(data), len(data))
	if err := os.WriteFile(base+".sha256", []byte(note), 0o644); err != nil {
		return err
	}
	return os.WriteFile(base+".zst", packed.Bytes(), 0o644)
}
