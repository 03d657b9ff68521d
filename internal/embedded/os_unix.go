//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that PostgreSQL runs as. PostgreSQL refuses root, so a root process runs it as another user;
// any other process runs it as itself.
type account struct {
	name     string
	uid, gid int
	switched bool // not the user of this process
}

// serverAccount chooses the user for the cluster at path, which may not exist yet: its owner, else postgres, else
// nobody.
func serverAccount(cluster string) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: userName(uid), uid: uid, gid: os.Getegid()}, nil
	}
	if info, err := os.Stat(cluster); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{name: userName(int(st.Uid)), uid: int(st.Uid), gid: int(st.Gid), switched: true}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if err := errors.Join(errUID, errGID); err != nil {
			return account{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		return account{name: name, uid: uid, gid: gid, switched: true}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is no user postgres or no one to run it as")
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

func (a account) give(path string) error {
	if !a.switched {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// attributes makes a child run as the account in a separate session, so that Ctrl-C in the terminal does not reach it
// before this process has drained.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func (a account) mayEnter(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	switch mode := info.Mode().Perm(); {
	case int(st.Uid) == a.uid:
		return mode&0o100 != 0
	case int(st.Gid) == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

func ownerOf(info os.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// kill signals a process that is not a child; signal 0 checks its existence.
func kill(pid int, sig syscall.Signal) error { return syscall.Kill(pid, sig) }

const errTaken = syscall.EWOULDBLOCK

func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

func unlockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// ownGroup makes a command that starts then the leader of a process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func signalGroup(cmd *exec.Cmd, s syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s) // it may have ended, which is fine
}
