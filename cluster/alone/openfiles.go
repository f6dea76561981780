package alone

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// openFiles sets how many files this process may have open, and what it starts.
func openFiles(most int64) error {
	limit := unix.Rlimit{Cur: uint64(most), Max: uint64(most)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set the limit of open files to %d: %w", most, err)
	}
	return nil
}
