package endpoints

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestReadQuery(t *testing.T) {
	values, _ := url.ParseQuery("container=c&command=sh&command=-c&stdin=true&tty=false&stdout&unknown=1")
	var exec corev1.PodExecOptions
	if err := readQuery(values, &exec); err != nil {
		t.Fatal(err)
	}
	if exec.Container != "c" || len(exec.Command) != 2 || !exec.Stdin || exec.TTY || !exec.Stdout || exec.Stderr {
		t.Errorf("read %+v", exec)
	}
	values, _ = url.ParseQuery("tailLines=5&sinceTime=2026-01-02T03:04:05Z&follow=1&limitBytes=x")
	var log corev1.PodLogOptions
	if err := readQuery(values, &log); err == nil {
		t.Error("a number that is none was read")
	}
	values.Del("limitBytes")
	if err := readQuery(values, &log); err != nil || *log.TailLines != 5 || !log.Follow || log.SinceTime.Year() != 2026 {
		t.Errorf("read %+v, %v", log, err)
	}
}
