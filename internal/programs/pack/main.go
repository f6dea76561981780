// Command pack compresses programs for embedding. It reads the programs named
// as arguments and writes NAME.zst and NAME.sha256 (digest and size) into -o. It
// needs the zstd program.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"
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
	// The reference encoder packs a tenth tighter than Go's, and bin/knarr holds
	// the result; -19 is its last level with a window that costs 8 MB to unpack.
	cmd := exec.Command("zstd", "-q", "-f", "-19", path, "-o", base+".zst")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("zstd %s: %w", path, err)
	}
	// zstd gives it the program's time, which make takes for stale.
	now := time.Now()
	if err := os.Chtimes(base+".zst", now, now); err != nil {
		return err
	}
	note := fmt.Sprintf("%x %d\n", sha256.Sum256(data), len(data))
	return os.WriteFile(base+".sha256", []byte(note), 0o644)
}
