package oomscore

import (
	"os"
	"os/exec"
	"testing"
)

// TestScores: what a process is started with is its parent's, until it is set.
func TestScores(t *testing.T) {
	own, err := Inherited()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	want := min(own+1, 1000) // upwards needs no privilege
	if err := Of(child.Process.Pid, want); err != nil {
		t.Error(err)
	}
	if got, err := Inherited(); got != own || err != nil {
		t.Errorf("this process has %d, was %d, %v", got, own, err)
	}
	if err := Self(own); err != nil {
		t.Error(err)
	}
	if err := Of(child.Process.Pid, 1001); err == nil {
		t.Error("a score that is none is taken")
	}
	if err := Of(os.Getpid()+1<<22, 0); err == nil {
		t.Error("a process that is not there")
	}
}
