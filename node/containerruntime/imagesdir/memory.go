package imagesdir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// maxMemory is more than what is remembered of maxFiles files.
const maxMemory = 64 << 20

// remembered is what was done before, without what had failed. A file that cannot be read
// costs another import.
func remembered(path string) map[string]record {
	files := map[string]record{}
	st, err := os.Stat(path)
	if err == nil && st.Size() > maxMemory {
		err = errors.New("it is too large")
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(b, &files)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("what was imported is not remembered", "file", path, "err", err)
		}
		return map[string]record{}
	}
	return files
}

// remember writes it down.
func remember(path string, files map[string]record) error {
	done := map[string]record{}
	for name, r := range files {
		if r.failed != "" {
			r.Size = -1 // to be taken again after a restart, and its images still known
		}
		done[name] = r
	}
	b, err := json.Marshal(done)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// inUse says that somebody has the file open for writing: the kernel grants no lease on
// it then. Where it grants none at all, only the time of the last change counts.
func inUse(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false // importing it says what is wrong
	}
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
