package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxRecord bounds a record: a few hundred bytes are usual.
const maxRecord = 16 << 10

type unixStat = syscall.Stat_t

const recordEnd = ".json"

// records reads those of a folder, and removes the ones whose data in the folder
// of the data is not there: it was not finished, or has been removed.
func (s *Store) records(folder, data string) (map[string]*Volume, error) {
	entries, err := fs.ReadDir(s.root.FS(), folder)
	if err != nil {
		return nil, fmt.Errorf("read the records of volumes: %w", err)
	}
	all := map[string]*Volume{}
	for _, e := range entries {
		id, is := strings.CutSuffix(e.Name(), recordEnd)
		if !is || !ValidID(id) || !e.Type().IsRegular() {
			continue
		}
		file := filepath.Join(folder, e.Name())
		v, err := s.record(file)
		if err == nil && v.ID != id {
			err = fmt.Errorf("it is that of volume %q", clip(v.ID))
		}
		if err != nil {
			slog.Warn("record of a volume cannot be read; its data stays", "file", s.path(file), "err", err)
			continue
		}
		if _, err := s.root.Lstat(filepath.Join(data, id)); errors.Is(err, os.ErrNotExist) {
			if err := s.root.Remove(file); err != nil {
				return nil, fmt.Errorf("remove the record of a volume: %w", err)
			}
			continue
		}
		all[id] = v
	}
	return all, nil
}

func (s *Store) record(file string) (*Volume, error) {
	st, err := s.root.Lstat(file)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxRecord {
		return nil, fmt.Errorf("it has %d bytes", st.Size())
	}
	b, err := s.root.ReadFile(file)
	if err != nil {
		return nil, err
	}
	v := &Volume{}
	return v, json.Unmarshal(b, v)
}

// note writes a volume's record, whole or not at all.
func (s *Store) note(folder string, v *Volume) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, v.ID+recordEnd)
	next := filepath.Join(folder, "."+v.ID)
	f, err := s.root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", v.ID, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.root.Rename(next, file)
	}
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", v.ID, err)
	}
	return nil
}
