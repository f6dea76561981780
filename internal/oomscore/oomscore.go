// Package oomscore says which processes the kernel ends first when memory runs out. It
// writes oom_score_adj in /proc.
package oomscore

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Self sets the score of this process, -1000 to 1000. Programs that it starts have the same
// until they get one of their own.
func Self(score int) error { return write("self", score) }

// Of sets the score of another process.
func Of(pid, score int) error { return write(strconv.Itoa(pid), score) }

// Inherited is the score of this process, and so of what it starts.
func Inherited() (int, error) {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func write(process string, score int) error {
	// Written at once, and never made: the kernel takes a score whole.
	f, err := os.OpenFile("/proc/"+process+"/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(score))
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("set the score of process %s: %w", process, err)
	}
	return nil
}
