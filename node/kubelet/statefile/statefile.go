// Package statefile reads and writes the small files of JSON in which the
// kubelet keeps what must outlive it. A file is replaced as a whole, so that a
// reader finds the old content or the new one, and reading it is bounded.
package statefile

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// TmpSuffix ends the names of files that are being written.
const TmpSuffix = ".tmp"

// maxSize is more than any of these files should ever have.
const maxSize = 4 << 20

// Write replaces the file at path. If durable, it is on disk on return.
func Write(path string, v any, durable bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	f, err := os.OpenFile(path+TmpSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+TmpSuffix, path)
	}
	if err != nil {
		_ = os.Remove(path + TmpSuffix)
	}
	return err
}

// Read decodes the file at path into v.
func Read(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return err
	}
	if len(b) > maxSize {
		return fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}
