def reasons(instance, assignments, objective):
    return ()
