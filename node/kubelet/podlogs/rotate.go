package podlogs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	stamp  = "20060102-150405"
	gz     = ".gz"
	making = ".tmp"
)

// Rotate moves a log larger than size aside, has it opened anew by its writer,
// compresses older ones and keeps at most files of them, the current included. Older ones
// that cannot be removed or compressed, as on a full disk, are part of the error and do not
// keep the log from being moved: else it would grow without end.
func Rotate(ctx context.Context, path string, size int64, files int, reopen func(context.Context) error) error {
	st, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return reopen(ctx) // an earlier rotation did not get through
	}
	if err != nil || st.Size() < size {
		return err
	}
	old, err := rotated(path)
	if err != nil {
		return err
	}
	var failed []error
	// The new one and the current one count too.
	for len(old) > max(files-2, 0) {
		if err := os.Remove(old[0]); err != nil {
			failed = append(failed, err)
		}
		old = old[1:]
	}
	for _, f := range old {
		if strings.HasSuffix(f, gz) {
			continue
		}
		if err := compress(ctx, f); err != nil {
			failed = append(failed, fmt.Errorf("compress %s: %w", f, err))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	to := path + "." + time.Now().Format(stamp)
	if err := os.Rename(path, to); err != nil {
		cause := errors.Unwrap(err) // without the names, of which one has the time in it
		return errors.Join(append(failed, fmt.Errorf("move log aside: %w", cause))...)
	}
	if err := reopen(ctx); err != nil {
		_ = os.Rename(to, path) // the writer still writes to it
		failed = append(failed, fmt.Errorf("reopen log: %w", err))
	}
	return errors.Join(failed...)
}

// rotated are the older files of a log, oldest first; leftovers are removed.
func rotated(path string) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range all {
		if strings.HasSuffix(f, making) {
			_ = os.Remove(f)
			continue
		}
		out = append(out, f)
	}
	slices.Sort(out)
	return out, nil
}

func compress(ctx context.Context, path string) (err error) {
	in, err := open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + gz + making
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) // no link is followed
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	w := gzip.NewWriter(out)
	if _, err := io.Copy(w, reader{ctx, in}); err != nil {
		out.Close()
		return err
	}
	if err := w.Close(); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path+gz); err != nil {
		return err
	}
	return os.Remove(path)
}

// A reader reads until ctx ends.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
