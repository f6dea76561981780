package userns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

const (
	// owner is the user whose subordinate ids pods get.
	owner = "kubelet"
	// program tells them.
	program = "getsubids"
	// programTime bounds it: it may ask another machine.
	programTime = 30 * time.Second
	// maxAnswer is more than one range is long.
	maxAnswer = 4096
)

// IDs are those that the node has for pods: the subordinate ones of the user kubelet, if
// there is that user and a program that tells them, and else all but the node's own.
func IDs(ctx context.Context, each uint32) (Range, error) {
	all := Range{each, uint32(1<<32 - uint64(each))}
	if _, err := user.Lookup(owner); err != nil {
		if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
			return all, nil
		}
		return Range{}, err
	}
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return all, nil
	}
	if err != nil {
		return Range{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	uids, err := ask(ctx, path, owner)
	if err != nil {
		return Range{}, fmt.Errorf("error retrieving additional uids for user %q: %w", owner, err)
	}
	gids, err := ask(ctx, path, "-g", owner)
	if err != nil {
		return Range{}, fmt.Errorf("error retrieving additional gids for user %q: %w", owner, err)
	}
	if uids != gids {
		return Range{}, fmt.Errorf("mismatched subuids and subgids for user %q", owner)
	}
	return parseIDs(uids)
}

// An answer keeps what it has room for.
type answer struct{ bytes.Buffer }

func (a *answer) Write(p []byte) (int, error) {
	if a.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return a.Buffer.Write(p)
}

func ask(ctx context.Context, path string, args ...string) (string, error) {
	var out answer
	c := exec.CommandContext(ctx, path, args...)
	c.Stdout, c.WaitDelay = &out, time.Second
	if err := c.Run(); err != nil {
		return "", err
	}
	return out.String(), nil
}

// parseIDs reads the only line of such an answer: 0: kubelet 65536 7208960.
func parseIDs(s string) (Range, error) {
	line := strings.Trim(s, "\n")
	if strings.Contains(line, "\n") {
		return Range{}, fmt.Errorf("error parsing line %q: it must contain only one line", s)
	}
	f := strings.Fields(line)
	if len(f) != 4 {
		return Range{}, fmt.Errorf("invalid line %q", s)
	}
	first, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("error parsing line %q: %w", s, err)
	}
	length, err := strconv.ParseUint(f[3], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("error parsing line %q: %w", s, err)
	}
	return Range{uint32(first), uint32(length)}, nil
}
