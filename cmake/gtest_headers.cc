// The program behind the precompiled header of kvd_test(): it does nothing.
int main() {}
